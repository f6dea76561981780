package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"knarr/cluster"
	"knarr/internal/run"
)

// A space is a kind of namespace that each node has of its own. A file in the
// cluster's directory in /run holds it: it outlives every process of the node,
// so that one that was killed is started again among its pods.
type space struct {
	name string
	flag int
}

// The mount namespace is entered last: the others are files of this one.
var spaces = []space{{"net", unix.CLONE_NEWNET}, {"uts", unix.CLONE_NEWUTS}, {"mnt", unix.CLONE_NEWNS}}

// ensureRun makes the directory of the spaces: a file system of its own that no
// other mount namespace gets a copy of, as the kernel wants it.
func (c *Cluster) ensureRun() error {
	if mounted(c.run()) {
		return nil
	}
	if err := os.MkdirAll(c.run(), 0o700); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", c.run(), "tmpfs", 0, "mode=0700,size=64k"); err != nil {
		return fmt.Errorf("mount %s: %w", c.run(), err)
	}
	if err := unix.Mount("", c.run(), "", unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make %s private: %w", c.run(), err)
	}
	return nil
}

// mounted reports whether a path is on another file system than its directory.
func mounted(path string) bool {
	var here, above unix.Stat_t
	return unix.Stat(path, &here) == nil && unix.Stat(filepath.Dir(path), &above) == nil && here.Dev != above.Dev
}

// removeRun lets go of all spaces; those without a process end.
func (c *Cluster) removeRun() error {
	for mounted(c.run()) {
		if err := unix.Unmount(c.run(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s: %w", c.run(), err)
		}
	}
	if err := os.Remove(c.run()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// hasSpaces reports whether a node's namespaces are there.
func (c *Cluster) hasSpaces(n int) bool {
	for _, k := range spaces {
		if !mounted(c.space(n, k)) {
			return false
		}
	}
	return true
}

// makeSpaces makes a node's namespaces, empty.
func (c *Cluster) makeSpaces(n int) error {
	for _, k := range spaces { // of a try that was cut short
		if mounted(c.space(n, k)) {
			if err := unix.Unmount(c.space(n, k), unix.MNT_DETACH); err != nil {
				return fmt.Errorf("unmount %s: %w", c.space(n, k), err)
			}
		}
	}
	made, held := make(chan int, 1), make(chan struct{})
	ended := make(chan error, 1)
	run.Go("make namespaces", func() {
		ended <- run.OnThread("make namespaces", func() error {
			defer close(made)
			flags := unix.CLONE_FS
			for _, k := range spaces {
				flags |= k.flag
			}
			if err := unix.Unshare(flags); err != nil {
				return fmt.Errorf("make namespaces: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
				return fmt.Errorf("keep mounts to the node: %w", err)
			}
			if err := leaveOthers(); err != nil {
				return err
			}
			if err := c.mountKubelet(n); err != nil {
				return err
			}
			// Mounts that a container makes for its node arrive by a shared root.
			if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
				return fmt.Errorf("share the node's mounts: %w", err)
			}
			if err := unix.Sethostname([]byte(c.node(n))); err != nil {
				return fmt.Errorf("name the node: %w", err)
			}
			made <- unix.Gettid()
			<-held
			return nil
		})
	})
	tid, ok := <-made
	if !ok {
		return <-ended
	}
	defer close(held)
	for _, k := range spaces {
		file := c.space(n, k)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			return err
		}
		if err := unix.Mount("/proc/self/task/"+strconv.Itoa(tid)+"/ns/"+k.name, file, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("hold namespace %s: %w", file, err)
		}
	}
	return nil
}

// mountKubelet mounts the directory of a node's kubelet where storage drivers and
// others look for it. On the host that stays empty, or another cluster's.
func (c *Cluster) mountKubelet(n int) error {
	files, at := cluster.KubeletFiles(c.data(n)), cluster.UpstreamKubeletDir
	for _, dir := range []string{files, at} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
	}
	if err := unix.Mount(files, at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", files, at, err)
	}
	return nil
}

// leaveOthers unmounts the copies of what other nodes on this host have mounted:
// they would keep namespaces and secrets of pods from ending with their owners.
func leaveOthers() error {
	b, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	for _, at := range slices.Backward(mountsOfOthers(string(b))) {
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s in the node: %w", at, err)
		}
	}
	return nil
}

// mountsOfOthers are the mount points of clusters: their directories in /run and
// their pods' volumes. Pure.
func mountsOfOthers(mountinfo string) (points []string) {
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(f[4])
		if strings.HasPrefix(at, "/run/knarr") || strings.Contains(at, "/volumes/kubernetes.io~") {
			points = append(points, at)
		}
	}
	return points
}

// within does something in a node's namespaces, the given kinds of them: start
// a process, open a socket.
func (c *Cluster) within(n int, kinds []space, do func() error) error {
	return run.OnThread("enter namespaces", func() error {
		var files []*os.File
		for _, k := range kinds {
			f, err := os.Open(c.space(n, k))
			if err != nil {
				return err
			}
			defer f.Close()
			files = append(files, f)
		}
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("leave the other threads: %w", err)
		}
		for i, k := range kinds {
			if err := unix.Setns(int(files[i].Fd()), k.flag); err != nil {
				return fmt.Errorf("enter %s: %w", files[i].Name(), err)
			}
		}
		return do()
	})
}
