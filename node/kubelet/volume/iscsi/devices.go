package iscsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// look is the pause between two looks for a device: the kernel's files tell nobody.
const look = 100 * time.Millisecond

// sessions are the directories of the kernel's sessions with the disk's target, at the
// disk's portals: anybody may have a target of the same name at another address, and its
// disks are not this one's.
func (h *Host) sessions(d *Disk) (dirs []string) {
	all, _ := filepath.Glob(filepath.Join(h.Sys, "class/iscsi_session/session*"))
	for _, dir := range all {
		number := strings.TrimPrefix(filepath.Base(dir), "session")
		if read(filepath.Join(dir, "targetname")) == d.IQN && read(filepath.Join(dir, "ifacename")) == d.iface() && slices.Contains(d.Portals, h.portalOf(number)) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// portalOf is the portal that the session of that number was made with.
func (h *Host) portalOf(session string) string {
	at := filepath.Join(h.Sys, "class/iscsi_connection/connection"+session+":0")
	return net.JoinHostPort(read(filepath.Join(at, "persistent_address")), read(filepath.Join(at, "persistent_port")))
}

func read(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// scan has the kernel look for the disk alone in each session.
func (h *Host) scan(d *Disk) error {
	sessions := h.sessions(d)
	if len(sessions) == 0 {
		return fmt.Errorf("there is no session with target %s at %s", d.IQN, strings.Join(d.Portals, ", "))
	}
	for _, dir := range sessions {
		at, err := filepath.EvalSymlinks(filepath.Join(dir, "device")) // …/hostN/sessionM
		if err != nil {
			return err
		}
		host := filepath.Base(filepath.Dir(at))
		if err := os.WriteFile(filepath.Join(h.Sys, "class/scsi_host", host, "scan"), []byte("0 0 "+strconv.Itoa(int(d.LUN))), 0); err != nil {
			return err
		}
	}
	return nil
}

// devices are the names of the disk's block devices, one for each session.
func (h *Host) devices(d *Disk) (names []string) {
	for _, dir := range h.sessions(d) {
		all, _ := filepath.Glob(filepath.Join(dir, "device/target*/*:*:*:"+strconv.Itoa(int(d.LUN)), "block/*"))
		for _, one := range all {
			names = append(names, filepath.Base(one))
		}
	}
	return names
}

// appear waits for the disk's first device.
func (h *Host) appear(ctx context.Context, d *Disk) (names []string, err error) {
	if err := h.scan(d); err != nil {
		return nil, err
	}
	err = h.await(ctx, h.Appear, func() bool { names = h.devices(d); return len(names) > 0 })
	if err != nil {
		return nil, fmt.Errorf("timed out waiting for the device of LUN %d of target %s after %s", d.LUN, d.IQN, h.Appear)
	}
	return names, nil
}

var errLate = errors.New("it takes too long")

func (h *Host) await(ctx context.Context, limit time.Duration, done func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(look):
		}
	}
	return nil
}

// join is the path of the device through which all devices of one disk are reached, where
// multipathd makes one; else that of the first.
func (h *Host) join(ctx context.Context, names []string, several bool) (string, error) {
	joined := ""
	find := func() bool { joined = h.joined(names); return joined != "" }
	if find(); several && joined == "" {
		if err := h.await(ctx, h.Join, find); err != nil && !errors.Is(err, errLate) {
			return "", err
		}
	}
	if joined == "" {
		joined = names[0]
	}
	return "/dev/" + joined, nil
}

func (h *Host) joined(names []string) string {
	for _, name := range names {
		holders, _ := filepath.Glob(filepath.Join(h.Sys, "block", name, "holders/dm-*"))
		for _, holder := range holders {
			if dm := filepath.Base(holder); strings.HasPrefix(read(filepath.Join(h.Sys, "block", dm, "dm/uuid")), "mpath-") {
				return dm
			}
		}
	}
	return ""
}

// forget has the kernel forget the disk's devices, which are not in use.
func (h *Host) forget(ctx context.Context, d *Disk) error {
	names := h.devices(d)
	if dm := h.joined(names); dm != "" {
		if out, _, err := h.Run(ctx, "multipath", "-f", "/dev/"+dm); err != nil {
			slog.WarnContext(ctx, "iscsi: the ways to a disk stay joined", "device", dm, "err", err, "output", strings.TrimSpace(out))
		}
	}
	for _, name := range names {
		err := os.WriteFile(filepath.Join(h.Sys, "block", name, "device/delete"), []byte("1"), 0)
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("iscsi: delete block device %s: %w", name, err)
		}
	}
	return nil
}
