package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/run"
)

// TestKubeletDir: a cluster whose kubelet's files are mounted where upstream's
// kubelet has its own works with them there, and nobody else's does.
func TestKubeletDir(t *testing.T) {
	need.Root(t)
	dir := t.TempDir()
	err := run.OnThread("a node", func() error {
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", filepath.Dir(UpstreamKubeletDir), "tmpfs", 0, ""); err != nil {
			return err
		}
		mine, other := layout{filepath.Join(dir, "mine")}, layout{filepath.Join(dir, "other")}
		for _, d := range []string{KubeletFiles(mine.dir), KubeletFiles(other.dir), UpstreamKubeletDir} {
			if err := os.MkdirAll(d, 0o750); err != nil {
				return err
			}
		}
		if got := mine.kubelet(); got != KubeletFiles(mine.dir) {
			t.Errorf("nothing is mounted: %s", got)
		}
		if err := unix.Mount(KubeletFiles(mine.dir), UpstreamKubeletDir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
		if got := mine.kubelet(); got != UpstreamKubeletDir {
			t.Errorf("mounted there: %s", got)
		}
		if got := other.kubelet(); got != KubeletFiles(other.dir) {
			t.Errorf("another's is mounted there: %s", got)
		}
		if err := unix.Mount("tmpfs", filepath.Dir(DevRunPrefix), "tmpfs", 0, ""); err != nil {
			return err
		}
		lock, err := mine.dataDirLock(marker{Version: 1}, true)
		if err != nil {
			return err
		}
		lock.release()
		if err := os.WriteFile(filepath.Join(UpstreamKubeletDir, "file"), nil, 0o600); err != nil {
			return err
		}
		if err := removeContents(UpstreamKubeletDir); err != nil {
			return err
		}
		if !empty(KubeletFiles(mine.dir)) {
			t.Error("something is left in the directory")
		}
		if err := unix.Unmount(UpstreamKubeletDir, 0); err != nil {
			return err
		}
		if err := os.Mkdir(DevRunPrefix+"123456", 0o700); err != nil {
			return err
		}
		if RemoveKubeletDir(); !exists(UpstreamKubeletDir) {
			t.Error("nodes have something mounted there, and it was removed")
		}
		if err := os.Remove(DevRunPrefix + "123456"); err != nil {
			return err
		}
		if RemoveKubeletDir(); exists(UpstreamKubeletDir) {
			t.Error("an empty directory was left")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
