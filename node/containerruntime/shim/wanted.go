package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"knarr/internal/run"
)

// errUnwanted is that a start was given up since nobody waits for it any more.
var errUnwanted = fmt.Errorf("nobody waits for its start any more: %w", context.Canceled)

const (
	// killAgain is how long after what a start has forked was killed it is looked for again:
	// one of them may have forked another meanwhile,
	killAgain = 10 * time.Millisecond
	// and killAgainMost where the start does not end.
	killAgainMost = time.Second
)

// startWanted calls start, which forks from the thread that it is called on, and kills what it
// has forked when gone is closed before its end. A container can stop a process on its way in,
// and start then waits for ever: SIGKILL ends stopped ones, too.
//
// What start forks are children of this thread, and so are those that they make with
// CLONE_PARENT, as libcontainer's do. No other goroutine has the thread meanwhile. Those that
// it has already are of starts of before. Children of a thread that ends pass to the first one,
// which this is never: it runs main alone.
func startWanted(gone <-chan struct{}, start func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	thread := unix.Gettid()
	before := childrenOf(thread)
	over, kills := make(chan struct{}), make(chan map[int]string, 1)
	run.Go("shim: start", func() {
		killed := map[int]string{}
		defer func() { kills <- killed }()
		select {
		case <-gone:
			killStarted(thread, before, over, killed)
		case <-over:
		}
	})
	// The thread is another start's only once nobody kills its children.
	defer func() {
		close(over)
		if killed := <-kills; err != nil {
			reapKilled(killed)
		}
	}()
	return start()
}

// reapKilled waits for those that a start which failed has not waited for itself.
func reapKilled(killed map[int]string) {
	now := map[int]string{}
	for pid := range killed {
		if began, ok := childBegan(pid); ok {
			now[pid] = began
		}
	}
	reap(killed, now)
}

// killStarted kills the children of a thread that it had not before, until over is closed, and
// adds to killed their numbers and when each began.
func killStarted(thread int, before map[int]bool, over <-chan struct{}, killed map[int]string) {
	for wait := killAgain; ; wait = min(2*wait, killAgainMost) {
		for pid := range childrenOf(thread) {
			if before[pid] {
				continue
			}
			if began, ok := killChild(pid); ok {
				killed[pid] = began
			}
		}
		select {
		case <-over:
			return
		case <-time.After(wait):
		}
	}
}

// killChild kills a child of this program that had the number a moment ago, and nobody who has
// it since: what the number is once it is held by a descriptor must be what it was before.
func killChild(pid int) (began string, ok bool) {
	was, ok := childBegan(pid)
	if !ok {
		return "", false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "", false
	}
	defer unix.Close(fd)
	if is, ok := childBegan(pid); !ok || is != was {
		return "", false
	}
	return was, unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) == nil
}

// childBegan is when a child of this program began.
func childBegan(pid int) (ticks string, ok bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", false
	}
	line := string(stat)
	f := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	ticks = began(line)
	return ticks, ticks != "" && f[1] == strconv.Itoa(os.Getpid())
}

// childrenOf are the children of one thread of this program; none without this file in the
// kernel (CONFIG_PROC_CHILDREN).
func childrenOf(thread int) map[int]bool {
	children := map[int]bool{}
	list, _ := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", thread))
	for word := range strings.FieldsSeq(string(list)) {
		if pid, err := strconv.Atoi(word); err == nil {
			children[pid] = true
		}
	}
	return children
}
