package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// SubPath binds what lies at sub inside the volume at root to a place of its
// own and returns that place. Neither links nor races inside the volume can
// lead outside of it: the kernel resolves the path beneath root and the bind
// is made of what it opened.
func (m *Manager) SubPath(ctx context.Context, uid, volume, container string, index int, root, sub string) (target string, err error) {
	var bound string
	err = m.calls.Do(ctx, root, m.AnswerTime, func() (err error) {
		bound, err = m.subPath(uid, volume, container, index, root, sub)
		return err
	})
	if err != nil {
		return "", err
	}
	return bound, nil
}

func (m *Manager) subPath(uid, volume, container string, index int, root, sub string) (string, error) {
	if filepath.IsAbs(sub) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	for _, part := range strings.Split(sub, "/") {
		if part == ".." {
			return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
		}
	}
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return "", err
	}
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", root, err)
	}
	defer unix.Close(rootFD)
	fd, err := openBeneath(rootFD, sub)
	if errors.Is(err, unix.ENOENT) {
		fd, err = mkdirBeneath(rootFD, sub)
	}
	if err != nil {
		return "", fmt.Errorf("subpath %q is not within volume path %q: %w", sub, root, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return "", err
	}
	target := filepath.Join(m.PodDir(uid), "volume-subpaths", volume, container, strconv.Itoa(index))
	if mounted(target) {
		// What an earlier start of the container bound may be another file now.
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return "", fmt.Errorf("unmount %s: %w", target, err)
		}
	}
	_ = os.Remove(target)
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return "", err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(target, 0o750)
	} else {
		err = os.WriteFile(target, nil, 0o640)
	}
	if err != nil {
		return "", err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND, ""); err != nil {
		return "", fmt.Errorf("bind %s: %w", sub, err)
	}
	return target, nil
}

// maxRaces bounds how often a walk that met a rename is started again: a container
// may rename for as long as it runs.
const maxRaces = 128

func openBeneath(root int, path string) (fd int, err error) {
	if path == "" {
		path = "."
	}
	for range maxRaces {
		fd, err = unix.Openat2(root, path, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
		})
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // a rename raced with the walk
		}
		break
	}
	return fd, err
}

// mkdirBeneath makes the missing directories of path and opens the last. They have the
// permissions of the volume's root and its sticky bit; that their files are of their group
// they have of the directory that they are made in. They are made with these, for by the
// time one could be changed a container may have put a link in its place.
func mkdirBeneath(root int, path string) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(root, &st); err != nil {
		return -1, err
	}
	parts := strings.Split(filepath.Clean(path), "/")
	for i := range parts {
		prefix := strings.Join(parts[:i+1], "/")
		fd, err := openBeneath(root, prefix)
		if err == nil {
			unix.Close(fd)
			continue
		}
		if !errors.Is(err, unix.ENOENT) {
			return -1, err
		}
		parent, err := openBeneath(root, strings.Join(parts[:i], "/"))
		if err != nil {
			return -1, err
		}
		err = run.OnThread("kubelet: directory of a subpath", func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return fmt.Errorf("have an umask of its own: %w", err)
			}
			unix.Umask(0)
			return unix.Mkdirat(parent, parts[i], st.Mode&0o1777)
		})
		unix.Close(parent)
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return -1, err
		}
	}
	return openBeneath(root, path)
}
