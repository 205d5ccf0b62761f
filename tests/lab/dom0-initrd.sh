#!/bin/busybox sh
# /init of dom0's initial RAM disk: finds the disks by their model, unpacks the
# run's payload into the root file system, and goes there.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev

while read -r module; do
    insmod "/modules/$module" || echo "insmod $module failed"
done </modules/order

disk() { # MODEL: its device node
    for block in /sys/block/sd*; do
        read -r model <"$block/device/model"
        [ "$model" = "$1" ] && echo "/dev/${block##*/}" && return
    done
    return 1
}

tries=0
until disk LAB-DOM0 >/dev/null && disk LAB-PAYLOAD >/dev/null && disk LAB-RESULTS >/dev/null; do
    tries=$((tries + 1))
    [ $tries -gt 300 ] && echo "LAB finished dom0 does not see its disks" && exec sh
    sleep 0.1
done

mount -t ext4 -o rw,noatime "$(disk LAB-DOM0)" /sysroot
mkdir -p /sysroot/lab
tar -xf "$(disk LAB-PAYLOAD)" -C /sysroot/lab
{
    echo "LAB_GUEST_DISK=$(disk LAB-GUEST)"
    echo "LAB_GUESTLOAD_DISK=$(disk LAB-GUESTLOAD)"
    echo "LAB_RESULTS_DISK=$(disk LAB-RESULTS)"
} >>/sysroot/lab/settings
umount /proc /sys
mount --move /dev /sysroot/dev
exec switch_root /sysroot /lab/init.sh
