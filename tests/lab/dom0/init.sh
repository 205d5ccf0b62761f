#!/bin/sh
# PID 1 of dom0: Xen's daemons by hand, then the scenario.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
# Xen's hotplug scripts lock by comparing /dev/stdin with a file; no udev makes it here.
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /tmp
mkdir -p /run/xen /run/lock /var/log/xen/console /var/lib/xen /results
hostname lab
exec </dev/hvc0 >/dev/hvc0 2>&1

. /lab/settings
. /lab/lib.sh
stage "dom0 is up"
busybox ip link set lo up
for module in xen-evtchn xen-gntdev xen-gntalloc xen-privcmd xen-blkback; do
    modprobe "$module" || echo "modprobe $module failed"
done
mount -t xenfs xenfs /proc/xen
xen_bin=/usr/lib/xen-4.17/bin
"$xen_bin/xenstored" --pid-file /run/xenstored.pid
until xenstore-exists /local 2>/dev/null || xenstore-write /tool/lab up 2>/dev/null; do sleep 0.2; done
"$xen_bin/xen-init-dom0" || finish "xen-init-dom0 failed"
# Guests' consoles go to files: with a ttyS0 each character is a request to
# QEMU, ten times slower.
"$xen_bin/xenconsoled" --log=guest --log-dir=/var/log/xen/console --pid-file=/run/xenconsoled.pid
xl info >/results/xl-info.txt 2>&1 || finish "xl info failed"
fact xen-version "$(awk '/^xen_version/ { print $3 }' /results/xl-info.txt)"
stage "Xen $(awk '/^xen_version/ { print $3 }' /results/xl-info.txt) answers xl"

install_programs
if [ "$LAB_SCENARIO" != shell ]; then
    give_up_after "$LAB_TIMEOUT" &
fi
. "/lab/scenarios/$LAB_SCENARIO.sh"
finish ok
