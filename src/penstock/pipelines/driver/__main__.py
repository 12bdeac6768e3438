"""`python -m penstock.pipelines.driver`: the process that `penstock pipeline start` begins."""

import sys

from penstock.pipelines.driver.engine import SparkEngine
from penstock.pipelines.driver.process import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], SparkEngine))
