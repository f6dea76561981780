package imagesdir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestPlan(t *testing.T) {
	now := time.Unix(1000, 0)
	old := now.Add(-time.Hour)
	known := map[string]record{
		"done.tar": {Size: 1, Modified: old}, "changed.tar": {Size: 1, Modified: old}, "bad.tar": {Size: 1, Modified: old, failed: "x"},
		"due.txt": {Size: 1, Modified: old, failed: "x", at: now, retry: retryFirst}, "later.txt": {Size: 1, Modified: old, failed: "x", at: now.Add(5 * time.Second), retry: retryFirst},
		"gone.tar": {},
	}
	todo, gone, again := plan([]file{
		{"done.tar", 1, old}, {"changed.tar", 2, old}, {"bad.tar", 1, old}, {"due.txt", 1, old}, {"later.txt", 1, old},
		{"new.tar", 1, old}, {"young.tar", 1, now.Add(-settle / 4)}, {"future.tar", 1, now.Add(time.Hour)},
	}, known, now)
	var names []string
	for _, f := range todo {
		names = append(names, f.name)
	}
	if want := []string{"changed.tar", "due.txt", "new.tar", "future.tar"}; !slices.Equal(names, want) {
		t.Errorf("taken: %v, want %v", names, want)
	}
	if !slices.Equal(gone, []string{"gone.tar"}) || again != settle*3/4 {
		t.Error(gone, again)
	}
	for name, want := range map[string]bool{"a.tar": true, "a.tar.gz": true, "a.tgz": true, "a.tar.zst": true, "a.tar.bz2": true, "a.tbz": true, "a.tar.lz4": true, "a.tar.xz": true, "a.txt": true, "a": false, ".a.tar": false, "a.tar.part": false} {
		if wanted(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// store has in memory what was imported; an archive's text is the name of its image.
type store struct {
	images map[string]bool // pinned
	loads  []string
	refuse error
	pulled func(name string) // after a pull; nil: nothing
}

func (s *store) LoadPinned(_ context.Context, path string) ([]string, error) {
	b, err := os.ReadFile(path)
	s.loads = append(s.loads, filepath.Base(path))
	if err != nil || strings.HasPrefix(string(b), "bad") {
		return nil, fmt.Errorf("no archive: %w", errors.Join(err, errors.New(string(b))))
	}
	name, broken := strings.CutSuffix(string(b), " broken")
	s.images[name] = true
	if broken {
		return []string{name}, errors.New("it cannot be unpacked")
	}
	return []string{name}, nil
}

func (s *store) PullPinned(ctx context.Context, name string) (string, error) {
	s.loads = append(s.loads, name)
	if _, bounded := ctx.Deadline(); !bounded {
		return "", errors.New("it may take forever")
	}
	if s.pulled != nil {
		defer s.pulled(name)
	}
	if s.refuse != nil {
		return "", s.refuse
	}
	s.images[name] = true
	return name, nil
}

func (s *store) Unpin(_ context.Context, name string) error {
	s.images[name] = false
	return nil
}

func (s *store) Has(_ context.Context, name string) (bool, error) {
	_, ok := s.images[name]
	return ok, nil
}

type fixture struct {
	*Directory
	*store
	t      *testing.T
	events []string
}

func newFixture(t *testing.T) *fixture {
	dir := t.TempDir()
	f := &fixture{store: &store{images: map[string]bool{}}, t: t}
	f.Directory = New(Config{Dir: filepath.Join(dir, "images"), Memory: filepath.Join(dir, "memory"), Store: f.store,
		Event: func(warning bool, reason, message string) {
			f.events = append(f.events, fmt.Sprint(warning, " ", reason))
		}})
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.restart()
	return f
}

func (f *fixture) restart() {
	f.files = remembered(f.Memory)
	f.forgetMissing(f.t.Context())
}

// put writes a file that was left alone for a while.
func (f *fixture) put(name, text string, age time.Duration) {
	path := filepath.Join(f.Dir, name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(-age)); err != nil {
		f.t.Fatal(err)
	}
}

// takes is what a look at the directory takes.
func (f *fixture) takes(want ...string) (again time.Duration) {
	f.t.Helper()
	f.loads = nil
	again, err := f.look(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	if !slices.Equal(f.loads, want) {
		f.t.Errorf("taken: %v, want %v", f.loads, want)
	}
	return again
}

// TestLook: what is there is imported once, also over a restart, and again when it
// changes or its images are gone; images of files that are gone are let go.
func TestLook(t *testing.T) {
	f := newFixture(t)
	f.put("a.tar", "a:1", time.Hour)
	f.put("b.tar.zst", "b:1", time.Hour)
	f.put("names.txt", "# names\n c:1\n\nd:1 # the last\n", time.Hour)
	f.put("README", "x", time.Hour)
	f.takes("a.tar", "b.tar.zst", "c:1", "d:1")
	f.takes()
	f.restart()
	f.takes()
	f.put("a.tar", "a:2", time.Minute)
	f.takes("a.tar")
	if f.images["a:1"] || !f.images["a:2"] {
		t.Errorf("pinned: %v", f.images)
	}
	delete(f.images, "b:1")
	f.restart()
	f.takes("b.tar.zst")
	for _, name := range []string{"names.txt", "b.tar.zst"} {
		if err := os.Remove(filepath.Join(f.Dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	f.takes()
	if f.images["b:1"] || f.images["c:1"] || !f.images["a:2"] {
		t.Errorf("pinned: %v", f.images)
	}
}

// TestShared: an image of two files stays pinned until both are gone.
func TestShared(t *testing.T) {
	f := newFixture(t)
	f.put("a.tar", "x:1", time.Hour)
	f.put("b.tar", "x:1", time.Hour)
	f.takes("a.tar", "b.tar")
	for i, name := range []string{"a.tar", "b.tar"} {
		if err := os.Remove(filepath.Join(f.Dir, name)); err != nil {
			t.Fatal(err)
		}
		f.takes()
		if f.images["x:1"] != (i == 0) {
			t.Errorf("without %s: pinned %v", name, f.images)
		}
	}
}

// TestBad: a bad archive is told of once and leaves the others; a pull that fails is
// tried again, after a while.
func TestBad(t *testing.T) {
	f := newFixture(t)
	f.put("a.tar", "bad", time.Hour)
	f.put("b.tar", "b:1", time.Hour)
	f.put("c.txt", "c:1", time.Hour)
	f.refuse = errors.New("no such registry")
	if again := f.takes("a.tar", "b.tar", "c:1"); again != retryFirst {
		t.Errorf("again after %v", again)
	}
	f.takes()
	at := func(name string, t time.Time) {
		r := f.files[name]
		r.at = t
		f.files[name] = r
	}
	at("c.txt", time.Now())
	at("a.tar", time.Now().Add(time.Hour))
	if again := f.takes("c:1"); again != 2*retryFirst {
		t.Errorf("again after %v", again)
	}
	at("a.tar", time.Now()) // it may have failed for want of room
	f.takes("a.tar")
	if left := f.files["a.tar"].retry; left != 2*retryFirst {
		t.Errorf("the archive again after %v", left)
	}
	want := []string{"true ImageImportFailed", "false ImagesImported", "true ImageImportFailed"}
	if !slices.Equal(f.events, want) {
		t.Errorf("events %v, want %v", f.events, want)
	}
	f.restart()
	f.refuse = nil
	f.takes("a.tar", "c:1")
}

// TestFailedFileKeepsImages: what a file had stays pinned while its new version cannot be had
// as a whole, over a restart too, and goes once it can or the file is gone; so does what was
// imported of an archive that fails.
func TestFailedFileKeepsImages(t *testing.T) {
	f := newFixture(t)
	f.put("a.tar", "a:1", time.Hour)
	f.put("b.tar", "b:1 broken", time.Hour)
	f.put("c.txt", "c:1\nd:1", time.Hour)
	f.takes("a.tar", "b.tar", "c:1", "d:1")
	pinned := func(want ...string) {
		t.Helper()
		var names []string
		for name, is := range f.images {
			if is {
				names = append(names, name)
			}
		}
		if slices.Sort(names); !slices.Equal(names, want) {
			t.Errorf("pinned: %v, want %v", names, want)
		}
	}
	pinned("a:1", "b:1", "c:1", "d:1")
	f.refuse = errors.New("no such registry")
	f.put("a.tar", "bad", time.Minute)
	f.put("c.txt", "c:1\nd:1\ne:1", time.Minute)
	f.takes("a.tar", "c:1", "d:1", "e:1")
	pinned("a:1", "b:1", "c:1", "d:1")
	f.restart()
	if err := os.Remove(filepath.Join(f.Dir, "b.tar")); err != nil {
		t.Fatal(err)
	}
	f.put("a.tar", "a:2", time.Minute)
	f.refuse = nil
	f.put("c.txt", "c:1\ne:1", time.Minute)
	f.takes("a.tar", "c:1", "e:1")
	pinned("a:2", "c:1", "e:1")
}

// TestArchivesFirst: archives wait for no registry, neither those that are there before a list
// nor one that comes while it is pulled.
func TestArchivesFirst(t *testing.T) {
	f := newFixture(t)
	f.put("a.txt", "a:1\nb:1\nc:1", time.Hour)
	f.put("b.tar", "x:1", time.Hour)
	f.pulled = func(name string) {
		time.Sleep(settle) // as one that is not there yet
		switch name {
		case "a:1":
			f.put("c.tar", "a:1", time.Hour)
		case "b:1": // the list has the other image now
			f.put("c.tar", "y:1", time.Minute)
		}
	}
	f.takes("b.tar", "a:1", "c.tar", "b:1", "c.tar", "c:1")
	for _, name := range []string{"a:1", "b:1", "c:1", "x:1", "y:1"} {
		if !f.images[name] {
			t.Errorf("%s is not pinned", name)
		}
	}
}

// TestHalfWritten: what was written just now, or is open for writing, waits.
func TestHalfWritten(t *testing.T) {
	f := newFixture(t)
	f.put("young.tar", "young:1", 0)
	if again := f.takes(); again > settle {
		t.Errorf("again after %v", again)
	}
	f.put("young.tar", "young:1", time.Hour)
	f.put("open.tar", "open:1", time.Hour)
	w, err := os.OpenFile(filepath.Join(f.Dir, "open.tar"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if again := f.takes("young.tar"); again > settle {
		t.Errorf("again after %v", again)
	}
	w.Close()
	f.takes("open.tar")
}

func TestReadNames(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		strings.Repeat("x\n", maxNames+1): "at most 1000 are pulled",
		strings.Repeat("#", maxList+1):    "it is larger than 1048576 bytes",
	} {
		path := filepath.Join(dir, "f")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readNames(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Error(err)
		}
	}
}

// TestRun: a directory that is removed and made anew is followed again.
func TestRun(t *testing.T) {
	f := newFixture(t)
	loaded := make(chan string, 8)
	f.Config.Event = func(_ bool, _, message string) { loaded <- message }
	f.put("a.tar", "a:1", time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Run(ctx) }()
	<-loaded
	if err := os.Rename(f.Dir, f.Dir+".old"); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.put("b.tar", "b:1", time.Hour)
	if got := <-loaded; !strings.Contains(got, "b.tar") {
		t.Error(got)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
