package podlogs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const sample = `2026-01-02T03:04:05.000000001Z stdout F one
2026-01-02T03:04:06Z stderr F two
2026-01-02T03:04:07Z stdout P thr
2026-01-02T03:04:07Z stdout F ee
garbage
2026-01-02T03:04:08Z stdout F four
`

func write(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRead(t *testing.T) {
	path := write(t, sample)
	all := Options{Tail: -1, Limit: -1}
	for _, c := range []struct {
		name     string
		change   func(*Options)
		out, err string
	}{
		{"all", func(*Options) {}, "one\nthree\nfour\n", "two\n"},
		{"none", func(o *Options) { o.Tail = 0 }, "", ""},
		{"last", func(o *Options) { o.Tail = 1 }, "four\n", ""},
		{"more than there is", func(o *Options) { o.Tail = 99 }, "one\nthree\nfour\n", "two\n"},
		{"since", func(o *Options) { o.Since = time.Date(2026, 1, 2, 3, 4, 7, 0, time.UTC) }, "three\nfour\n", ""},
		{"limit", func(o *Options) { o.Limit = 5 }, "one\n", "t"},
		{"times", func(o *Options) { o.Timestamps = true },
			"2026-01-02T03:04:05.000000001Z one\n2026-01-02T03:04:07.000000000Z three\n2026-01-02T03:04:08.000000000Z four\n", "2026-01-02T03:04:06.000000000Z two\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := all
			c.change(&o)
			var out, errw bytes.Buffer
			if err := Read(context.Background(), path, o, &out, &errw); err != nil {
				t.Fatal(err)
			}
			if out.String() != c.out || errw.String() != c.err {
				t.Errorf("out %q err %q", out.String(), errw.String())
			}
		})
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
	ch chan struct{}
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.b.Write(p)
	select {
	case s.ch <- struct{}{}:
	default:
	}
	return n, err
}

func (s *safeBuffer) until(t *testing.T, want string) {
	t.Helper()
	for {
		s.mu.Lock()
		got := s.b.String()
		s.mu.Unlock()
		if got == want {
			return
		}
		select {
		case <-s.ch:
		case <-time.After(5 * time.Second):
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

func TestFollowThroughRotation(t *testing.T) {
	path := write(t, "2026-01-02T03:04:05Z stdout F one\n")
	ctx, cancel := context.WithCancel(context.Background())
	out := &safeBuffer{ch: make(chan struct{}, 1)}
	ended := make(chan error, 1)
	go func() {
		ended <- Read(ctx, path, Options{Follow: true, Tail: -1, Limit: -1, Running: func(context.Context) bool { return true }}, out, out)
	}()
	out.until(t, "one\n")
	add := func(p, line string) {
		f, err := os.OpenFile(p, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintf(f, "2026-01-02T03:04:05Z stdout F %s\n", line)
	}
	add(path, "two")
	out.until(t, "one\ntwo\n")
	err := Rotate(context.Background(), path, 1, 3, func(context.Context) error { add(path, "three"); return nil })
	if err != nil {
		t.Fatal(err)
	}
	out.until(t, "one\ntwo\nthree\n")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestFollowEndsWithTheContainer(t *testing.T) {
	path := write(t, sample)
	var out bytes.Buffer
	err := Read(context.Background(), path, Options{Follow: true, Tail: 1, Limit: -1, Running: func(context.Context) bool { return false }}, &out, nil)
	if err != nil || out.String() != "four\n" {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestRotateKeepsSoMany(t *testing.T) {
	path := write(t, sample)
	for _, s := range []string{"20200101-000000.gz", "20200101-000001", "20200101-000002", "20200101-000002.gz.tmp"} {
		if err := os.WriteFile(path+"."+s, []byte(sample), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := Rotate(context.Background(), path, 1<<20, 3, nil); err != nil {
		t.Fatal("a small log was rotated:", err)
	}
	if err := Rotate(context.Background(), path, 10, 3, func(context.Context) error { return os.WriteFile(path, nil, 0o600) }); err != nil {
		t.Fatal(err)
	}
	all, _ := filepath.Glob(path + "*")
	if len(all) != 3 {
		t.Errorf("%v", all)
	}
	packed := 0
	for _, f := range all {
		if strings.HasSuffix(f, ".gz") {
			packed++
		}
	}
	if packed != 1 {
		t.Errorf("%d packed of %v", packed, all)
	}
}

// TestRotateBesideAFailure: an older log that cannot be compressed, and one that cannot be
// removed, are in the error, and the log is moved and opened anew all the same.
func TestRotateBesideAFailure(t *testing.T) {
	path := write(t, sample)
	for _, s := range []string{".20200101-000000/in", ".20200101-000001/in"} { // directories, which are neither
		if err := os.MkdirAll(path+s, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	reopened := 0
	err := Rotate(context.Background(), path, 10, 3, func(context.Context) error { reopened++; return os.WriteFile(path, nil, 0o600) })
	if err == nil || !strings.Contains(err.Error(), "remove "+path+".20200101-000000") || !strings.Contains(err.Error(), "compress "+path+".20200101-000001") {
		t.Errorf("error %v", err)
	}
	if st, err := os.Stat(path); reopened != 1 || err != nil || st.Size() != 0 {
		t.Errorf("opened %d times, %v", reopened, err)
	}
}

func TestTail(t *testing.T) {
	path := write(t, sample)
	if got, err := Tail(path, 80, 6); err != nil || got != "\nfour\n" {
		t.Errorf("%q %v", got, err)
	}
}

func FuzzParse(f *testing.F) {
	for line := range strings.Lines(sample) {
		f.Add([]byte(strings.TrimSuffix(line, "\n")))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		l, err := Parse(raw)
		if err == nil && !bytes.HasSuffix(raw, l.Text) {
			t.Errorf("%q became %q", raw, l.Text)
		}
	})
}
