package alone

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestLockFile: one program at a time holds it, and gives way to another if it is told to.
func TestLockFile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := (lockFile{yield: true}).hold(ctx); err == nil || !strings.Contains(err.Error(), "no lock file specified") {
		t.Errorf("without a file: %v", err)
	}
	if same, release, err := (lockFile{}).hold(ctx); err != nil || same != ctx {
		t.Errorf("nothing to hold: %v", err)
	} else {
		release()
	}
	path := filepath.Join(t.TempDir(), "lock")
	first, releaseFirst, err := lockFile{path: path, yield: true}.hold(ctx)
	if err != nil {
		t.Fatal(err)
	}
	short, stop := context.WithCancel(ctx)
	stop()
	if _, release, err := (lockFile{path: path}).hold(short); err != nil {
		t.Errorf("who does not want to wait any more: %v", err)
	} else {
		release()
	}
	<-first.Done() // it was opened
	if ctx.Err() != nil {
		t.Fatal("the holder does not give way")
	}
	held := make(chan error, 1)
	go func() {
		second, release, err := lockFile{path: path}.hold(ctx)
		if err == nil {
			err = second.Err()
			release()
		}
		held <- err
	}()
	select {
	case err := <-held:
		t.Fatalf("held by two: %v", err)
	default:
	}
	releaseFirst()
	if err := <-held; err != nil {
		t.Errorf("who waits for it: %v", err)
	}
	again, release, err := lockFile{path: path, yield: true}.hold(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	release() // also while nobody opened it
	<-again.Done()
}
