package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// inheritedEnv hands the descriptors that a program holds for containers to the
// one that takes its place: their numbers, and for a terminal and a relay whose it is.
const inheritedEnv = "KNARR_SHIM_INHERITED"

// again becomes the program at path. The containers stay children of this
// process, and what it holds open for them stays open: none of them writes to a
// pipe without a reader, or loses its terminal, in between.
func (s *Service) again(path string) error {
	if err := os.Setenv(inheritedEnv, strings.Join(s.handOver(), ",")); err != nil {
		return err
	}
	return syscall.Exec(path, os.Args, os.Environ())
}

// handOver lets the next program inherit what is held for containers, and names it.
func (s *Service) handOver() (all []string) {
	pass := func(name string, fd int) {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err == nil {
			all = append(all, name+"="+strconv.Itoa(fd))
		}
	}
	s.mu.Lock()
	for k, t := range s.tasks {
		if t.init == nil {
			continue
		}
		t.init.mu.Lock()
		h := &t.init.held
		for _, fd := range h.outputs {
			pass("", fd)
		}
		if h.stdin > 0 {
			pass("", h.stdin)
		}
		if h.console != nil && h.console.master != nil {
			// A copy: the file itself belongs to the runtime's poller.
			if fd, err := unix.FcntlInt(h.console.master.Fd(), unix.F_DUPFD, 3); err == nil {
				pass(k.namespace+"/"+k.id, fd)
			}
		}
		if h.relay != nil {
			h.relay.hand(t.init.pid, pass)
		}
		t.init.mu.Unlock()
	}
	s.mu.Unlock()
	return all
}

// leftFiles are the descriptors that the program before this one left, by name; nil where it
// was killed, or there was none.
type leftFiles map[string][]int

// inherited reads what was left.
func inherited() leftFiles {
	text, ok := os.LookupEnv(inheritedEnv)
	if !ok {
		return nil
	}
	_ = os.Unsetenv(inheritedEnv)
	all := leftFiles{}
	for word := range strings.SplitSeq(text, ",") {
		name, number, ok := strings.Cut(word, "=")
		fd, err := strconv.Atoi(number)
		if ok && err == nil && fd > 2 {
			unix.CloseOnExec(fd)
			all[name] = append(all[name], fd)
		}
	}
	return all
}

// take gives those of one name to whoever goes on with them.
func (l leftFiles) take(name string) []int {
	fds := l[name]
	delete(l, name)
	return fds
}

// close closes the others: this program has its own of them by now, or what they were for is
// not there any more.
func (l leftFiles) close() {
	for name := range l {
		closeAll(l.take(name))
	}
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// inheritConsole goes on with the terminal of a container, if the program before
// this one left it.
func (p *process) inheritConsole(fds []int) error {
	if len(fds) != 1 {
		closeAll(fds)
		return errors.New("its terminal ended with the program before")
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return fmt.Errorf("terminal: %w", err)
	}
	c := &console{}
	p.held.console = c
	return p.copyConsole(c, os.NewFile(uintptr(fds[0]), "console"))
}

// waitForOthers waits for the children that the program before this one left and
// that are no container's first process: those that Exec added. Nobody asks for
// them any more, since who did spoke to that program.
func (s *Service) waitForOthers() {
	known := map[int]bool{}
	for _, t := range s.tasks {
		known[t.init.number()] = true
	}
	// After an exec the first thread has all children. Without this file in the
	// kernel they stay zombies until their container ends.
	for pid := range childrenOf(os.Getpid()) {
		if !known[pid] {
			run.Go("shim: process of before", func() { waitForOther(pid) })
		}
	}
}

// waitForOther waits for one. One that was still on its way into its container is killed:
// nobody goes on with its start, and if the container has stopped it, it stays so, and
// counts among the container's processes, for as long as that runs.
func waitForOther(pid int) {
	if stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat")); err == nil && entering(string(stat)) {
		_ = unix.Kill(pid, unix.SIGKILL) // it is a child, so that the number is nobody else's
	}
	_, _ = unix.Wait4(pid, nil, 0, nil)
}
