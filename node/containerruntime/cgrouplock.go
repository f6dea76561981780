package containerruntime

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/internal/run"
)

// A cgroupLock has the kernel's lock for moves between control groups ready. Who moves a
// process after a pause waits until all processors have seen that (10 to 15 ms); who does
// so within some milliseconds of another does not. Each sandbox and each container is such
// a move. So a move is made when one is asked for, of this process to where it is, while
// the rest of the work is done that comes before.
type cgroupLock struct {
	root string // of all hierarchies

	mu      sync.Mutex
	last    time.Time
	groups  []byte   // of this process, when the file was opened
	members *os.File // of one of them; nil if there is none to write to
	closed  bool
}

// lockStays is how long after a move the next one does not wait, at least.
const lockStays = 5 * time.Millisecond

// intercept makes the lock ready for calls that are going to need it.
func (l *cgroupLock) intercept(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	switch req.(type) {
	case *cri.RunPodSandboxRequest, *cri.CreateContainerRequest:
		run.Go("container runtime: lock of control groups", func() { _ = l.take() }) // it is sooner, not other
	}
	return next(ctx, req)
}

// take makes a move that changes nothing.
func (l *cgroupLock) take() error {
	if !l.mu.TryLock() {
		return nil // another is at it
	}
	defer l.mu.Unlock()
	if l.closed || time.Since(l.last) < lockStays {
		return nil
	}
	groups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return err
	}
	if !bytes.Equal(groups, l.groups) { // somebody has moved this process
		if l.members != nil {
			_ = l.members.Close() // nothing is written late
		}
		l.groups, l.members = groups, openMembers(l.root, string(groups), os.Getpid())
	}
	if l.members == nil {
		return errors.ErrUnsupported
	}
	_, err = l.members.WriteString("0")
	l.last = time.Now()
	return err
}

func (l *cgroupLock) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed = true; l.members != nil {
		_ = l.members.Close() // nothing is written late
	}
}

// openMembers opens the list of processes of one of the groups, in the words of
// /proc/self/cgroup, if this one is in it: paths may be those of another namespace. It
// gives nil if there is none.
func openMembers(root, groups string, pid int) *os.File {
	for line := range strings.Lines(groups) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		hierarchy := strings.TrimPrefix(fields[1], "name=")
		path := filepath.Join(root, hierarchy, fields[2], "cgroup.procs")
		list, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for word := range strings.FieldsSeq(string(list)) {
			if word == strconv.Itoa(pid) {
				if f, err := os.OpenFile(path, os.O_WRONLY, 0); err == nil {
					return f
				}
				break
			}
		}
	}
	return nil
}
