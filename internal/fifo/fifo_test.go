package fifo

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const later = unix.O_CREAT | unix.O_NONBLOCK

func path(t *testing.T) string { return filepath.Join(t.TempDir(), "pipe") }

func opened(t *testing.T, path string, flag int) io.ReadWriteCloser {
	t.Helper()
	f, err := OpenFifo(context.Background(), path, flag, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// ends waits for what must not hang.
func ends[T any](t *testing.T, what string, f func() T) T {
	t.Helper()
	done := make(chan T, 1)
	go func() { done <- f() }()
	select {
	case v := <-done:
		return v
	case <-time.After(10 * time.Second):
		t.Fatalf("%s hangs", what)
		panic("unreachable")
	}
}

func TestReaderBeforeWriter(t *testing.T) {
	p := path(t)
	r := opened(t, p, unix.O_RDONLY|later)
	got := make(chan string, 1)
	go func() {
		b, err := io.ReadAll(r)
		if err != nil {
			t.Error(err)
		}
		got <- string(b)
	}()
	select {
	case b := <-got:
		t.Fatalf("nobody wrote, and it ended with %q", b)
	case <-time.After(50 * time.Millisecond):
	}
	w := opened(t, p, unix.O_WRONLY)
	for _, s := range []string{"one ", "two"} {
		if _, err := io.WriteString(w, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if b := ends(t, "the end", func() string { return <-got }); b != "one two" {
		t.Fatal(b)
	}
}

// A writer that says nothing is an end too, and one after another is not.
func TestSilentWriter(t *testing.T) {
	p := path(t)
	r := opened(t, p, unix.O_RDONLY|later)
	first, second := opened(t, p, unix.O_WRONLY), opened(t, p, unix.O_WRONLY)
	_ = first.Close()
	n, err := 0, error(nil)
	done := make(chan struct{})
	go func() { n, err = r.Read(make([]byte, 8)); close(done) }()
	select {
	case <-done:
		t.Fatalf("there is a writer still: %d, %v", n, err)
	case <-time.After(50 * time.Millisecond):
	}
	_ = second.Close()
	ends(t, "the end", func() error { <-done; return nil })
	if n != 0 || err != io.EOF {
		t.Fatalf("%d, %v", n, err)
	}
}

func TestCopy(t *testing.T) {
	p := path(t)
	r, w := opened(t, p, unix.O_RDONLY|later), opened(t, p, unix.O_WRONLY)
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	go func() {
		if _, err := w.Write(want); err != nil {
			t.Error(err)
		}
		_ = w.Close()
	}()
	var got bytes.Buffer
	n, err := io.Copy(&got, r)
	if err != nil || n != int64(len(want)) || !bytes.Equal(got.Bytes(), want) {
		t.Fatalf("%d of %d bytes, %v", n, len(want), err)
	}
}

// A shim's log is open for both: it has no end but Close.
func TestBothWays(t *testing.T) {
	p := path(t)
	f := opened(t, p, unix.O_RDWR|later)
	w := opened(t, p, unix.O_WRONLY)
	_ = w.Close()
	done := make(chan error, 1)
	go func() { _, err := io.Copy(io.Discard, f); done <- err }()
	select {
	case err := <-done:
		t.Fatalf("it ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	_ = f.Close()
	if err := ends(t, "reading", func() error { return <-done }); !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
}

func TestClosedBeforeTheOther(t *testing.T) {
	for name, c := range map[string]struct {
		flag int
		use  func(io.ReadWriter) error
		want error
	}{
		"reader": {unix.O_RDONLY, func(f io.ReadWriter) error { _, err := f.Read(make([]byte, 1)); return err }, ErrReadClosed},
		"copy":   {unix.O_RDONLY, func(f io.ReadWriter) error { _, err := io.Copy(io.Discard, f); return err }, ErrReadClosed},
		"writer": {unix.O_WRONLY, func(f io.ReadWriter) error { _, err := f.Write([]byte("x")); return err }, ErrWriteClosed},
	} {
		t.Run(name, func(t *testing.T) {
			f := opened(t, path(t), c.flag|later)
			done := make(chan error, 1)
			go func() { done <- c.use(f) }()
			time.Sleep(10 * time.Millisecond)
			for range 2 {
				if err := ends(t, "Close", f.Close); err != nil {
					t.Fatal(err)
				}
			}
			if err := ends(t, "what waited", func() error { return <-done }); !errors.Is(err, c.want) {
				t.Fatalf("%v, want %v", err, c.want)
			}
		})
	}
}

func TestContext(t *testing.T) {
	use := map[string]func(context.Context, string) (io.ReadWriteCloser, error){
		"reader": func(ctx context.Context, p string) (io.ReadWriteCloser, error) {
			return OpenFifo(ctx, p, unix.O_RDONLY|later, 0o600)
		},
		"writer": func(ctx context.Context, p string) (io.ReadWriteCloser, error) {
			return OpenFifo(ctx, p, unix.O_WRONLY|later, 0o600)
		},
	}
	for name, open := range use {
		t.Run(name+" alone", func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			f, err := open(ctx, path(t))
			if err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := ends(t, "the other end", func() error {
				if name == "reader" {
					_, err := f.Read(make([]byte, 1))
					return err
				}
				_, err := f.Write([]byte("x"))
				return err
			}); !errors.Is(err, ErrReadClosed) && !errors.Is(err, ErrWriteClosed) {
				t.Fatal(err)
			}
		})
	}
	// What is said already is not lost.
	ctx, cancel := context.WithCancel(t.Context())
	p := path(t)
	r, err := use["reader"](ctx, p)
	if err != nil {
		t.Fatal(err)
	}
	w := opened(t, p, unix.O_WRONLY)
	cancel()
	time.Sleep(10 * time.Millisecond)
	if _, err := io.WriteString(w, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	if b, err := io.ReadAll(r); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
}

func TestWrongDirection(t *testing.T) {
	p := path(t)
	r, w := opened(t, p, unix.O_RDONLY|later), opened(t, p, unix.O_WRONLY)
	if _, err := r.Write([]byte("x")); err != ErrWrToRDONLY {
		t.Error(err)
	}
	if _, err := w.Read([]byte("x")); err != ErrRdFrmWRONLY {
		t.Error(err)
	}
	if _, err := OpenFifo(t.Context(), path(t), unix.O_RDONLY|unix.O_NONBLOCK, 0); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

func TestIsFifo(t *testing.T) {
	p := path(t)
	if is, err := IsFifo(p); is || err != nil {
		t.Fatal(is, err)
	}
	opened(t, p, unix.O_RDWR|later)
	if is, err := IsFifo(p); !is || err != nil {
		t.Fatal(is, err)
	}
	if is, err := IsFifo(filepath.Dir(p)); is || err != nil {
		t.Fatal(is, err)
	}
}

func TestDup2(t *testing.T) {
	p := path(t)
	r := opened(t, p, unix.O_RDWR|later)
	to, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	f, err := OpenFifoDup2(t.Context(), p, unix.O_WRONLY, 0, int(to.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.Write(int(to.Fd()), []byte("hi")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 8)
	if n, err := r.Read(b); err != nil || string(b[:n]) != "hi" {
		t.Fatalf("%q, %v", b[:n], err)
	}
}

// Pipes that wait hold neither threads nor buffers.
func TestIdle(t *testing.T) {
	const pipes = 500
	dir := t.TempDir()
	var wg sync.WaitGroup
	before, threads := held(), threadsNow(t)
	var all []io.ReadWriteCloser
	for i := range pipes {
		f := opened(t, filepath.Join(dir, strconv.Itoa(i)), unix.O_RDONLY|later)
		all = append(all, f)
		wg.Go(func() { _, _ = io.Copy(io.Discard, f) })
	}
	time.Sleep(100 * time.Millisecond)
	// 3 kB, and 12 to 17 below the race detector; the buffer that must not be is of 32.
	if each := (held() - before) / pipes; each >= 32<<10 {
		t.Errorf("each pipe holds %d bytes", each)
	}
	if n := threadsNow(t) - threads; n > 20 {
		t.Errorf("%d more threads", n)
	}
	for _, f := range all {
		_ = f.Close()
	}
	wg.Wait()
}

func held() int {
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int(s.HeapAlloc + s.StackInuse)
}

func threadsNow(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
