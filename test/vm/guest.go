// Package vm boots Debian's own kernel in QEMU and tests knarr there: with control
// groups of version 2 alone and with modules that the machine may lack. It reads
// bin/knarr, the kernel's package that make vm unpacks in build/vm and the tests
// of other packages, which it compiles. It writes in directories of its own, and
// changes nothing else of the machine: the guest has no network but its own.
package vm

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// A kernel is what a package linux-image holds.
type kernel struct {
	image   string // vmlinuz
	modules string // folder named for its version
}

// findKernel looks where a package was unpacked.
func findKernel(dir string) (k kernel, err error) {
	for pattern, to := range map[string]*string{"boot/vmlinuz-*": &k.image, "lib/modules/*": &k.modules} {
		found, _ := filepath.Glob(filepath.Join(dir, pattern))
		if len(found) != 1 {
			return k, fmt.Errorf("%d of %s in %s, want one", len(found), pattern, dir)
		}
		*to = found[0]
	}
	return k, nil
}

// A guest is a virtual machine that runs commands, one after the other. Its
// second serial port carries them: a line from here is a mark, a limit in seconds
// and a command in base64; the answer is what the command prints, and a line of
// the mark and the exit code.
type guest struct {
	qemu     *exec.Cmd
	messages bytes.Buffer // of QEMU
	console  string       // file with what the guest's kernel and init say
	port     net.Conn
	unread   []byte
	commands int
}

// slack is the time that an answer may take beyond its command's limit.
const slack = 30 * time.Second

// makeDisk makes an empty file system that counts by project, of a size in mke2fs' words. It
// takes no more of this machine than is written to it.
func makeDisk(ctx context.Context, dir, size string) (path string, err error) {
	path = filepath.Join(dir, "disk")
	cmd := exec.CommandContext(ctx, "/sbin/mke2fs", "-q", "-t", "ext4", "-O", "quota,project", "-E", "quotatype=prjquota", path, size)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("make a file system: %w: %s", err, out)
	}
	return path, nil
}

// A machine is what a guest has: its processors and memory, as QEMU's arguments, the size of
// its disk, and further words for its kernel.
type machine struct {
	size  []string
	disk  string
	words string
	// counted has each instruction take a nanosecond of the guest's time, however long it
	// takes here, and rests take none: what the guest says of its processor's time is then
	// what it did, whatever else this machine does. Its processors take turns.
	counted bool
}

// plain is enough for most cases.
var plain = machine{size: []string{"-smp", "2", "-m", "6144"}, disk: "4G"}

// boot starts a guest with a kernel, an initramfs and a disk, and waits for it to take
// commands. Files of its own go to dir. It ends with ctx.
func boot(ctx context.Context, m machine, image, initramfs, disk, dir string) (g *guest, err error) {
	g = &guest{console: filepath.Join(dir, "console")}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "port"), Net: "unix"})
	if err != nil {
		return g, err
	}
	defer l.Close()
	clock := []string{"-accel", "tcg,thread=multi"}
	if m.counted {
		clock = []string{"-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off"}
	}
	g.qemu = exec.CommandContext(ctx, "nice", append([]string{"-n", "19", "qemu-system-x86_64",
		"-cpu", "max",
		"-kernel", image, "-initrd", initramfs, "-append", "console=ttyS0 panic=-1 quiet no_timer_check cryptomgr.notests " + m.words, // tests of ticks and ciphers fail or hang where the machine is busy
		"-nodefaults", "-nic", "none", "-display", "none", "-no-reboot",
		"-drive", "file=" + disk + ",if=virtio,format=raw,cache=unsafe",
		"-serial", "file:" + g.console, "-serial", "unix:" + l.Addr().String()}, append(clock, m.size...)...)...)
	g.qemu.Stdout, g.qemu.Stderr = &g.messages, &g.messages
	if err := g.qemu.Start(); err != nil {
		return g, err
	}
	err = l.SetDeadline(time.Now().Add(slack))
	if err == nil {
		g.port, err = l.Accept()
	}
	if err != nil {
		return g, errors.Join(fmt.Errorf("start QEMU: %w: %s", err, g.messages.String()), g.close())
	}
	// The guest says that it is ready as if it had been asked.
	if _, _, err := g.answer("ready", 10*time.Minute); err != nil {
		return g, errors.Join(fmt.Errorf("boot: %w", err), g.close())
	}
	return g, nil
}

// run gives what a command of the guest's shell prints, and its exit code. The
// guest ends the command after limit.
func (g *guest) run(limit time.Duration, command string) (output string, code int, err error) {
	g.commands++
	mark := fmt.Sprintf("end-of-command-%d", g.commands)
	if err := g.port.SetWriteDeadline(time.Now().Add(slack)); err != nil {
		return "", 0, err
	}
	line := fmt.Sprintf("%s %d %s\n", mark, int(limit.Seconds()), base64.StdEncoding.EncodeToString([]byte(command)))
	if _, err := g.port.Write([]byte(line)); err != nil {
		return "", 0, fmt.Errorf("send a command: %w", err)
	}
	return g.answer(mark, limit+slack)
}

// answer reads up to a line of the mark and an exit code.
func (g *guest) answer(mark string, limit time.Duration) (output string, code int, err error) {
	if err := g.port.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return "", 0, err
	}
	for buf := make([]byte, 1<<16); ; {
		if out, code, rest, ok := cutAnswer(g.unread, mark); ok {
			g.unread = rest
			return out, code, nil
		}
		n, err := g.port.Read(buf)
		if err != nil {
			return string(g.unread), 0, fmt.Errorf("no answer from the guest: %w", err)
		}
		g.unread = append(g.unread, buf[:n]...)
	}
}

// cutAnswer splits what the guest sent after the line of the mark.
func cutAnswer(b []byte, mark string) (output string, code int, rest []byte, ok bool) {
	at := bytes.LastIndex(b, []byte("\n"+mark+" "))
	if at < 0 {
		return "", 0, nil, false
	}
	line, rest, whole := bytes.Cut(b[at+1:], []byte("\n"))
	if n, _ := fmt.Sscanf(string(line), mark+" %d", &code); !whole || n != 1 {
		return "", 0, nil, false
	}
	return string(b[:at]), code, rest, true
}

// close ends the guest as if by its power switch: it keeps nothing.
func (g *guest) close() error {
	if g.port != nil {
		_ = g.port.Close()
	}
	_ = g.qemu.Process.Kill()
	if err := g.qemu.Wait(); !errors.As(err, new(*exec.ExitError)) {
		return err
	}
	return nil
}

// consoleEnd is the last of what the guest's kernel and init said.
func (g *guest) consoleEnd() string {
	b, _ := os.ReadFile(g.console)
	return strings.ToValidUTF8(string(b[max(0, len(b)-16<<10):]), "?")
}

// compileTests makes static test programs of packages, DIR/NAME.test.
func compileTests(ctx context.Context, dir string, packages []string) error {
	args := append([]string{"test", "-c", "-ldflags=-s -w", "-o", dir + "/"}, packages...)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compile tests: %w\n%s", err, out)
	}
	return nil
}
