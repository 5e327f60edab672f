#!/usr/bin/env bash
# A Docker daemon of its own for tests, with compose and a base image, without installing anything:
#   docker_daemon.sh start DIR PYTHON   unpack, start, import the base image; DIR/env is to be sourced
#   docker_daemon.sh stop DIR           stop the daemon and remove DIR
#   docker_daemon.sh bubblewrap DIR     unpack bubblewrap only, to DIR/root/usr/bin/bwrap
# Needs root, and apt with a Debian or Ubuntu mirror. What it lacks is its one line on stderr.
set -euo pipefail

BASE_IMAGE=osmosis-test-base:latest
PACKAGES="containerd docker.io libdevmapper1.02.1 libseccomp2 runc tini"

die() { echo "docker_daemon.sh: $*" >&2; exit 1; }

private_apt() { # DIR [apt-get arguments]: an apt that keeps its lists to itself
  local state=$1; shift
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
  apt-get -qq -o APT::Sandbox::User=root -o Dir::State::lists="$state/lists" \
    -o Dir::Cache="$state/cache" -o Acquire::Languages=none -o Acquire::http::Timeout=20 "$@"
}

unpack() { # DIR ROOT PACKAGE...: download what is named into DIR and lay it out below ROOT
  local debs=$1 root=$2; shift 2
  mkdir -p "$debs" "$root"
  (cd "$debs" && private_apt "$debs/apt" "${APT_OPTIONS[@]}" update &&
    private_apt "$debs/apt" "${APT_OPTIONS[@]}" download "$@") ||
    die "apt cannot download $*; give it a mirror"
  for deb in "$debs"/*.deb; do dpkg-deb -x "$deb" "$root"; done
}

unpack_docker() {
  # shellcheck disable=SC2086
  unpack "$1/debs" "$1/root" $PACKAGES
}

unpack_compose() { # the v2 plugin: from the next Debian when this one has only v1
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)|$(SUITE)' 'Created-By: Packages' |
    sed -n 's/|.*//p' | grep -m1 '/debian/*$') || die "apt has no Debian mirror for compose v2"
  mkdir -p "$1/compose-debs"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main" \
    > "$1/compose-debs/sources.list"
  APT_OPTIONS=(-o Dir::Etc::sourcelist="$1/compose-debs/sources.list" -o Dir::Etc::sourceparts=-)
  unpack "$1/compose-debs" "$1/compose-root" docker-compose
  mkdir -p "$1/config/cli-plugins"
  cp "$1/compose-root/usr/libexec/docker/cli-plugins/docker-compose" "$1/config/cli-plugins/"
}

start_daemon() {
  local libs
  libs=$(find "$1/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd:)
  # A network namespace of its own: nothing of the host's network changes, nothing gets out.
  PATH="$1/root/usr/bin:$1/root/usr/sbin:$PATH" LD_LIBRARY_PATH="$libs" \
    setsid unshare --net dockerd --data-root "$1/data" --exec-root "$1/exec" \
    --pidfile "$1/dockerd.pid" --host "unix://$1/docker.sock" --iptables=false --ip-masq=false \
    --default-address-pool base=10.201.0.0/16,size=28 > "$1/dockerd.log" 2>&1 < /dev/null &
  for _ in $(seq 150); do
    docker_cli "$1" version > /dev/null 2>&1 && return
    kill -0 $! 2> /dev/null || die "dockerd ended: $(tail -n 1 "$1/dockerd.log")"
    sleep 0.2
  done
  die "dockerd did not answer within 30 s: $(tail -n 1 "$1/dockerd.log")"
}

docker_cli() {
  local dir=$1; shift
  DOCKER_HOST="unix://$dir/docker.sock" DOCKER_CONFIG="$dir/config" \
    "$dir/root/usr/bin/docker" "$@"
}

import_base_image() {
  "$2" "$(dirname "$0")/base_image.py" > "$1/base.tar" || die "the base image cannot be packed"
  docker_cli "$1" import --change 'ENV PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8' \
    --change 'WORKDIR /workspace' \
    "$1/base.tar" "$BASE_IMAGE" > /dev/null
}

start() {
  local dir=$1 python=$2
  [ "$(id -u)" = 0 ] || die "only root can start a Docker daemon; start one yourself"
  type -P apt-get dpkg-deb unshare > /dev/null || die "no apt-get, dpkg-deb or unshare here"
  mkdir -p "$dir"
  unpack_docker "$dir" & local docker=$!
  unpack_compose "$dir" & local compose=$!
  local failed=0 # both are waited for: nothing writes into DIR once this has ended
  wait $docker || failed=1
  wait $compose || failed=1
  [ $failed = 0 ] || exit 1
  start_daemon "$dir"
  docker_cli "$dir" compose version > /dev/null || die "the compose plugin does not run"
  import_base_image "$dir" "$python"
  cat > "$dir/env" << ENV
export DOCKER_HOST=unix://$dir/docker.sock
export DOCKER_CONFIG=$dir/config
export PATH=$dir/root/usr/bin:\$PATH
ENV
}

stop() {
  local dir=$1 pid=""
  if [ -f "$dir/dockerd.pid" ]; then
    pid=$(cat "$dir/dockerd.pid")
    kill "$pid" 2> /dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2> /dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2> /dev/null || true
  fi
  awk -v dir="$dir/" 'index($2, dir) == 1 { print $2 }' /proc/mounts | sort -r |
    xargs -r -d '\n' umount -l 2> /dev/null || true
  rm -rf "$dir"
}

APT_OPTIONS=()
case "${1:-}" in
  start) start "$(readlink -f "$2")" "${3:-$(type -P python3)}" ;;
  bubblewrap) unpack "$(readlink -f "$2")/debs" "$(readlink -f "$2")/root" bubblewrap ;;
  stop) stop "$(readlink -f "$2")" ;;
  *) die "say start DIR [PYTHON], or stop DIR" ;;
esac
