package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// An initramfs is written as a cpio archive in the format "newc", the one that
// Linux unpacks. The first error stays, and close gives it.
type initramfs struct {
	w       *bufio.Writer
	offset  int64
	entries int
	folders map[string]bool
	err     error
}

func newInitramfs(w io.Writer) *initramfs {
	return &initramfs{w: bufio.NewWriterSize(w, 1<<20), folders: map[string]bool{".": true}}
}

// Kinds of entries, as in a file's mode.
const (
	directory = 0o040000
	regular   = 0o100000
	symlink   = 0o120000
)

// entry writes a header, the name and size bytes of content, each padded to four.
func (a *initramfs) entry(name string, mode fs.FileMode, kind uint32, size int64, content io.Reader) {
	if a.err != nil {
		return
	}
	a.entries++
	header := []any{"070701", a.entries, kind | uint32(mode.Perm()), 0, 0, 1, 0, size, 0, 0, 0, 0, len(name) + 1, 0}
	a.write(fmt.Appendf(nil, "%s%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00", append(header, name)...))
	a.pad()
	if a.err == nil {
		var n int64
		n, a.err = io.CopyN(a.w, content, size)
		a.offset += n
	}
	a.pad()
}

func (a *initramfs) write(b []byte) {
	if a.err == nil {
		_, a.err = a.w.Write(b)
		a.offset += int64(len(b))
	}
}

func (a *initramfs) pad() { a.write(make([]byte, (4-a.offset%4)%4)) }

// parents makes the folders above name: the kernel does not.
func (a *initramfs) parents(name string) {
	if dir := path.Dir(name); !a.folders[dir] {
		a.parents(dir)
		a.folders[dir] = true
		a.entry(dir, 0o755, directory, 0, strings.NewReader(""))
	}
}

func (a *initramfs) data(name string, content string) {
	a.parents(name)
	a.entry(name, 0o644, regular, int64(len(content)), strings.NewReader(content))
}

func (a *initramfs) link(name, target string) {
	a.parents(name)
	a.entry(name, 0o777, symlink, int64(len(target)), strings.NewReader(target))
}

// copy takes a file of this machine, with its mode.
func (a *initramfs) copy(name, from string) {
	f, err := os.Open(from)
	if err != nil {
		a.fail(err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		a.fail(err)
		return
	}
	a.parents(name)
	a.entry(name, info.Mode(), regular, info.Size(), f)
}

// program takes a program of this machine, with the libraries that it loads.
func (a *initramfs) program(name, from string) error { return a.programOf("", name, from) }

// programOf takes a program with the libraries that it loads, those of packages that are
// unpacked in root before this machine's.
func (a *initramfs) programOf(root, name, from string) error {
	cmd := exec.Command("ldd", from)
	if root != "" {
		var dirs []string
		for _, lib := range []string{"lib", "usr/lib"} {
			found, err := filepath.Glob(filepath.Join(root, lib, "*-linux-gnu"))
			if err != nil {
				return err
			}
			dirs = append(dirs, found...)
		}
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join(dirs, ":"))
	}
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", from, err)
	}
	if strings.Contains(string(out), "not found") {
		return fmt.Errorf("libraries of %s:\n%s", from, out)
	}
	a.copy(name, from)
	for _, library := range strings.Fields(string(out)) {
		if strings.HasPrefix(library, "/") && !a.folders[library] {
			a.folders[library] = true // once, though several load it
			a.copy(strings.TrimPrefix(strings.TrimPrefix(library, root), "/"), library)
		}
	}
	return nil
}

// copyAll takes every regular file below a folder of this machine.
func (a *initramfs) copyAll(name, from string) {
	a.fail(filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var rel string
			rel, err = filepath.Rel(from, file)
			a.copy(path.Join(name, rel), file)
		}
		return err
	}))
}

// addIptables takes both kinds of iptables of this machine, with their extensions. As on
// Debian, the names without a kind are those of nftables.
func (a *initramfs) addIptables() error {
	for _, kind := range []string{"legacy", "nft"} {
		program := "xtables-" + kind + "-multi"
		if err := a.program("sbin/"+program, "/usr/sbin/"+program); err != nil {
			return err
		}
		for _, family := range []string{"iptables", "ip6tables"} {
			for _, verb := range []string{"", "-save", "-restore"} {
				a.link("sbin/"+family+"-"+kind+verb, program)
				if kind == "nft" {
					a.link("sbin/"+family+verb, family+"-"+kind+verb)
				}
			}
		}
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/*.so")
	if err == nil && len(extensions) == 0 {
		err = errors.New("it has no extensions")
	}
	for _, file := range extensions { // some are links to others, some load what the program does not
		err = errors.Join(err, a.program(strings.TrimPrefix(file, "/"), file))
	}
	return err
}

// addSystemd takes systemd of this machine, and the bus that it is spoken to by. Its units are
// in testdata/root.
func (a *initramfs) addSystemd() error {
	var errs []error
	for _, program := range []string{"usr/lib/systemd/systemd", "usr/bin/systemctl", "usr/bin/systemd-run", "usr/bin/dbus-daemon"} {
		errs = append(errs, a.program(program, "/"+program))
	}
	for _, file := range []string{
		"usr/share/dbus-1/system.conf", "usr/share/dbus-1/system.d/org.freedesktop.systemd1.conf",
		// What services depend on unless they say otherwise.
		"usr/lib/systemd/system/sysinit.target", "usr/lib/systemd/system/basic.target", "usr/lib/systemd/system/shutdown.target",
	} {
		a.copy(file, "/"+file)
	}
	return errors.Join(errs...)
}

// addVolumes takes servers of NFS and what mounts NFS and iSCSI from packages that are
// unpacked in root, and mount(8) of this machine, which asks such programs.
func (a *initramfs) addVolumes(root string) error {
	var errs []error
	for _, program := range []string{"sbin/mount.nfs", "sbin/iscsid", "sbin/iscsiadm", "usr/sbin/exportfs", "usr/sbin/rpc.mountd", "usr/sbin/rpc.nfsd"} {
		errs = append(errs, a.programOf(root, "sbin/"+path.Base(program), filepath.Join(root, program)))
	}
	a.link("sbin/mount.nfs4", "mount.nfs")
	a.copy("etc/netconfig", filepath.Join(root, "etc/netconfig"))
	a.copy("etc/iscsi/iscsid.conf", filepath.Join(root, "etc/iscsi/iscsid.conf"))
	errs = append(errs, a.program("given/mount", "/bin/mount"), a.program("sbin/blkid", "/sbin/blkid"))
	return errors.Join(errs...)
}

func (a *initramfs) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

// close ends the archive.
func (a *initramfs) close() error {
	a.entry("TRAILER!!!", 0, 0, 0, strings.NewReader(""))
	if a.err == nil {
		a.err = a.w.Flush()
	}
	return a.err
}
