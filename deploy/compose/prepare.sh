#!/bin/sh
# What the services prove themselves by, made before they start, in volumes that each of them sees its own part of.
# Authorities and passwords are made once, certificates at each `docker compose up`: brokers take new ones as they run.
set -eu
umask 077
host=${ADVERTISED_HOST:-localhost}

# once FILE: with a password in it.
once() {
  [ -s "$1" ] || { python -c 'import secrets; print(secrets.token_urlsafe(24))' > "$1.new" && mv "$1.new" "$1"; }
}

# put OWNER FROM TO: a copy that its owner alone can read.
put() {
  install -o "$1" -g "$1" -m 400 "$2" "$3"
}

cd /made/authorities
for name in clients brokers etcd; do
  [ -s "$name/ca.pem" ] || penstock tls init "$name"
done
inside="--host broker-1 --host broker-2 --host broker-3"
penstock tls issue clients broker --force --host "$host" --host localhost --host 127.0.0.1 $inside
penstock tls issue brokers broker --force --broker $inside
penstock tls issue clients prometheus --force --client
penstock tls issue etcd broker --force --client
penstock tls issue etcd member --force --host etcd-1 --host etcd-2 --host etcd-3 --host 127.0.0.1
for name in cluster.secret admin.password grafana.password; do
  once "$name"
done

cat > config.yaml <<END
current: admin
contexts:
  admin:
    server: $host:19091,$host:19092,$host:19093
    properties:
      security.protocol: SASL_SSL
      sasl.mechanism: SCRAM-SHA-512
      sasl.username: admin
      sasl.password.file: /etc/penstock/tls/admin.password
      ssl.ca.location: /etc/penstock/tls/ca.pem
END

broker=10001
mkdir -p /made/brokers/.penstock
chmod 755 /made/brokers /made/brokers/.penstock
put $broker config.yaml /made/brokers/.penstock/config.yaml
put $broker cluster.secret /made/brokers/cluster.secret
put $broker admin.password /made/brokers/admin.password
for kind in clients:broker:ca brokers:cluster:cluster-ca etcd:etcd:etcd-ca; do
  directory=${kind%%:*} rest=${kind#*:}
  put $broker "$directory/ca.pem" "/made/brokers/${rest#*:}.pem"
  put $broker "$directory/broker.key" "/made/brokers/${rest%:*}.key"
  put $broker "$directory/broker.pem" "/made/brokers/${rest%:*}.pem"
done

for file in ca.pem member.pem member.key; do
  put 0 "etcd/$file" "/made/etcd/$file"
done
for file in ca.pem prometheus.pem prometheus.key; do
  put 65534 "clients/$file" "/made/prometheus/$file"
done
put 472 grafana.password /made/grafana/password
