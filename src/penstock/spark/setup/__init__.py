"""Sessions that are set up well, and what Spark needs installed.

sessions.py      `penstock.spark.session`
installation.py  which Java and pyspark are there
warm.py          what makes a start quick, prepared once
gateway.py       the JVM's start
rehearsal.py     the run that shows which classes a start needs
"""
