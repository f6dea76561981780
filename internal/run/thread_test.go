package run

import (
	"errors"
	"runtime"
	"syscall"
	"testing"
)

// TestOnThread: what is to have a thread of its own never has the process' first one.
func TestOnThread(t *testing.T) {
	first := errors.New("on the first thread")
	for range 1000 {
		runtime.Gosched() // other threads are idle, so the first one is often the next
		err := OnThread("test", func() error {
			if syscall.Gettid() == syscall.Getpid() {
				return first
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
