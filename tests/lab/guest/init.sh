#!/bin/sh
# PID 1 of a guest. Reports what it is, then does what dom0 tells it on the
# console: a line "SEQUENCE SCRIPT ARGUMENTS" runs /run/lab/SCRIPT.sh and is
# answered by "LAB end SEQUENCE STATUS".
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mkdir -p /dev/shm /dev/pts
mount -t tmpfs tmpfs /dev/shm
mount -t devpts devpts /dev/pts
ln -s /proc/self/fd /dev/fd
ln -s fd/0 /dev/stdin
ln -s fd/1 /dev/stdout
ln -s fd/2 /dev/stderr
mount -t debugfs debugfs /sys/kernel/debug

# Modules of a kernel that is not the disk's.
[ -d "/run/lab/modules/$(uname -r)" ] && mount --bind /run/lab/modules /usr/lib/modules

exec </dev/hvc0 >/dev/hvc0 2>&1
# dom0's lines must not come back as ours.
stty -echo

echo "LAB kernel $(uname -r)"
echo "LAB igt-version $(dpkg-query -W -f '${Version}' igt-gpu-tools-tests)"
echo "LAB igt-programs $(ls /usr/libexec/igt-gpu-tools | wc -l)"
echo "LAB ready $(cut -d' ' -f1 /proc/uptime)"

while read -r sequence script arguments; do
    # Below: dom0 stops us by "poweroff", which has no answer.
    case $script in
    poweroff) break ;;
    esac
    # shellcheck disable=SC2086 # the arguments are words
    set -f
    sh "/run/lab/$script.sh" $arguments </dev/null
    echo "LAB end $sequence $?"
done
echo "LAB off $(cut -d' ' -f1 /proc/uptime)"
# No poweroff program here: the kernel does it.
echo o >/proc/sysrq-trigger
sleep 60
