package follow

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// next waits for a call, which each send is.
func next(t *testing.T, ctx context.Context, calls <-chan string, want string) {
	t.Helper()
	for {
		select {
		case got := <-calls:
			if got == want {
				return
			}
		case <-ctx.Done():
			t.Fatalf("never saw %q", want)
		}
	}
}

func TestFile(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("f", "one")
	calls, done := make(chan string, 100), make(chan error, 1)
	following, stop := context.WithCancel(ctx)
	go func() {
		done <- File(following, file, func() time.Duration {
			text, _ := os.ReadFile(file)
			calls <- string(text)
			if string(text) == "again" {
				write("f", "after a while")
				return time.Millisecond
			}
			return 0
		})
	}()
	next(t, ctx, calls, "one")
	write("f", "two")
	next(t, ctx, calls, "two")
	write("g", "three")
	if err := os.Rename(filepath.Join(dir, "g"), file); err != nil {
		t.Fatal(err)
	}
	next(t, ctx, calls, "three")
	write("f", "again")
	next(t, ctx, calls, "after a while")
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := File(ctx, filepath.Join(dir, "none", "f"), nil); err == nil {
		t.Error("a folder that is not there is followed")
	}
}
