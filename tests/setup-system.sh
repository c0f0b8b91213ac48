#!/usr/bin/env bash
# Installs the system packages that some tests use, with apt, as root, in CI or when asked (--yes).
# Anywhere else it installs nothing: those tests skip, and say why.
set -euo pipefail

packages=(
    chromium    # looks at the page (tests/page)
    fonts-noto-core   # the fonts of most desktops, in which the page is measured
    fonts-dejavu-core
    curl        # the session in the tutorial
    man-db      # shows the man pages (tests/test_packages.py)
    openssl     # what mq certificate asks
    systemd     # judges the unit (tests/test_deploy.py)
    btrfs-progs # file systems of a test's own, in a file
    e2fsprogs
    xfsprogs
    iproute2    # hosts of a test's own, in network namespaces (tests/hosts)
    prometheus  # promtool, which judges the metrics and the alert rules (tests/web/test_prometheus.py)
    fuse3       # a disk that remembers what was written to it (tests/crash)
    fiu-utils   # system calls that fail under a real daemon (tests/faults)
    gcc         # plugins/mq-native
    libc6-dev
    glusterfs-server # a root that several hosts share (tests/hosts)
    glusterfs-client
    memcached   # the server of plugins/mq-memcached
    etcd-server # the server of plugins/mq-etcd
    postgresql # the server of plugins/mq-postgres
    rabbitmq-server # what clients of AMQP are held to beside mq (tests/amqp/clients)
    nodejs      # a client from there (tests/amqp/clients)
    amqp-tools  # clients of other languages (tests/amqp/clients): rabbitmq-c's, PHP's, Java's
    php-cli
    php-amqplib
    default-jdk-headless
    librabbitmq-client-java
    golang-go   # runs what the page for Go shows (tests/test_readme.py)
    nginx-light # proxies before mq (tests/proxies)
    haproxy
    caddy
    libfaketime # a wall clock that is wrong (tests/e2e)
    beanstalkd  # peers that the benchmarks start (tests/benchmarks)
    redis-server
    nats-server
)
command -v npm >/dev/null || packages+=(npm) # other packages of nodejs than Debian's bring it along

if [ "${CI:-}" != true ] && [ "${1:-}" != --yes ]; then
    echo "setup-system: not in CI and not asked (--yes); nothing installed" >&2
elif [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup-system: needs root and apt; nothing installed" >&2
else
    missing=()
    for package in "${packages[@]}"; do
        dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    if [ ${#missing[@]} -gt 0 ]; then
        apt-get update -qq
        # tests start servers of their own: Debian is not to start one for the system
        mkdir -p /etc/postgresql-common
        grep -qs '^create_main_cluster' /etc/postgresql-common/createcluster.conf ||
            echo 'create_main_cluster = false' >>/etc/postgresql-common/createcluster.conf
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}"
    fi
fi
