package cni

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace runs a test in a network namespace of its own. It must not end the
// goroutine, as t.Fatal does, since that is not the test's.
func inNamespace(t *testing.T, test func(*testing.T)) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: the namespace ends with the thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		test(t)
	}()
	<-done
}
