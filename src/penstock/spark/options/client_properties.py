"""Names of Kafka's own client properties, which options carry behind `kafka.`, so that a query brought here keeps them.

Apache Kafka's consumers and producers from 3.9 to 4.3 have them, and librdkafka the PEM and password ones;
sasl.password.file is ours. What few of them mean something here is in `option_table`; the others are accepted and
change nothing.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Handed on to `penstock.client.security`, which says what it cannot do.
SECURITY = _names(
    """
    enable.ssl.certificate.verification
    sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd sasl.kerberos.min.time.before.relogin
    sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor
    sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms
    sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
    sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms
    sasl.mechanism sasl.mechanisms
    sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms
    sasl.oauthbearer.jwks.endpoint.url sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class
    sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.password.file sasl.username
    security.protocol
    ssl.ca.location ssl.ca.pem ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.enabled.protocols ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.location
    ssl.key.password ssl.key.pem
    ssl.keymanager.algorithm ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location
    ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type
    """
)

IGNORED = _names(
    """
    allow.auto.create.topics auto.commit.interval.ms auto.include.jmx.reporter auto.offset.reset
    buffer.memory check.crcs client.dns.lookup client.rack compression.gzip.level compression.lz4.level
    compression.zstd.level config.providers connections.max.idle.ms enable.auto.commit
    enable.idempotence enable.metrics.push exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms key.deserializer
    key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection max.poll.interval.ms
    max.poll.records max.request.size metadata.max.age.ms metadata.max.idle.ms
    metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
    metrics.recording.level metrics.sample.window.ms partition.assignment.strategy
    partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms partitioner.class
    partitioner.ignore.keys reconnect.backoff.max.ms reconnect.backoff.ms retries retry.backoff.max.ms
    retry.backoff.ms security.providers send.buffer.bytes session.timeout.ms share.acknowledgement.mode
    share.acquire.mode socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    transaction.two.phase.commit.enable transactional.id value.deserializer value.serializer
    """
)
