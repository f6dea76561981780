package podfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// listed makes directories in dir and gives their paths in the order of its listing,
// which a container can look at as well.
func listed(t *testing.T, dir string, n int) (paths []string) {
	t.Helper()
	for i := range n {
		must(t, os.MkdirAll(filepath.Join(dir, fmt.Sprint("d", i)), 0o700))
	}
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	must(t, err)
	for _, name := range names {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// TestMoved: a walk under which directories are moved still visits all, each once, and
// where it cannot, it visits the rest and says so.
func TestMoved(t *testing.T) {
	type dirs struct{ first, p, m, q, last string }
	for _, c := range []struct {
		name string
		move func(d dirs) error // when m is visited
		left string             // who is not visited, below m's parent
		err  error
	}{
		{"ahead", func(d dirs) error { return os.Rename(d.m, d.q+"/m") }, "", nil},
		{"behind", func(d dirs) error { return os.Rename(d.m, d.first+"/m") }, "", nil},
		{"up", func(d dirs) error { return os.Rename(d.m, filepath.Dir(d.p)+"/m") }, "", nil},
		{"and its parent renamed", func(d dirs) error { return errors.Join(os.Rename(d.m, d.q+"/m"), os.Rename(d.p, d.p+"-")) }, "", nil},
		{"parent of both", func(d dirs) error { return os.Rename(d.p, d.q+"/p") }, "", nil},
		{"and its parent", func(d dirs) error { return errors.Join(os.Rename(d.m, d.q+"/m"), os.Rename(d.p, d.first+"/p")) }, "rest", ErrMoved},
		{"removed", func(d dirs) error { return os.RemoveAll(d.m) }, "below", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			top := t.TempDir()
			all := listed(t, top, 8)
			in := listed(t, all[1]+"/p", 8)
			d := dirs{all[0], filepath.Dir(in[0]), in[0], all[4], all[7]}
			must(t, os.Mkdir(d.m+"/below", 0o700))
			names := map[uint64]string{}
			for _, at := range append(append([]string{top, d.p, d.m + "/below"}, all...), in...) {
				var st unix.Stat_t
				must(t, unix.Stat(at, &st))
				names[st.Ino] = at
			}
			visits := map[string]int{}
			err := Walk(t.Context(), top, func(_ int, st *unix.Stat_t) error {
				name := names[st.Ino]
				visits[name]++
				if name == d.m {
					return c.move(d)
				}
				return nil
			})
			if !errors.Is(err, c.err) || err != nil && c.err == nil {
				t.Errorf("%v, want %v", err, c.err)
			}
			for _, name := range names {
				want := 1
				if c.left == "rest" && filepath.Dir(name) == d.p && name != d.m || c.left == "below" && filepath.Base(name) == "below" {
					want = 0
				}
				if visits[name] != want {
					t.Errorf("%s visited %d times, want %d", name, visits[name], want)
				}
			}
		})
	}
}

// TestMovedOften: directories moved from deep below as often as the walk meets them cost it
// no more than maxSearch, and end it with an error after it has visited what is above.
func TestMovedOften(t *testing.T) {
	const depth = 700
	top := t.TempDir()
	all := listed(t, top, 3)
	deep(t, all[0], depth) // whose file is at the end
	must(t, os.WriteFile(all[2]+"/data", nil, 0o600))
	var data unix.Stat_t
	must(t, unix.Stat(all[2]+"/data", &data))
	end, err := unix.Open(all[0], unix.O_PATH, 0)
	must(t, err)
	for range depth {
		next, err := unix.Openat(end, "deep", unix.O_PATH, 0)
		must(t, err, unix.Close(end))
		end = next
	}
	defer unix.Close(end)
	away, err := unix.Open(all[1], unix.O_PATH, 0)
	must(t, err)
	defer unix.Close(away)
	const many = 100
	markers := map[uint64]string{}
	for i := range many {
		name := fmt.Sprint("marker", i)
		var st unix.Stat_t
		must(t, unix.Mkdirat(end, name, 0o700), unix.Fstatat(end, name, &st, 0))
		markers[st.Ino] = name
	}
	w := walk{ctx: t.Context(), buf: make([]byte, 32<<10)}
	met := false
	w.visit = func(_ int, st *unix.Stat_t) error {
		met = met || st.Ino == data.Ino
		if name := markers[st.Ino]; name != "" {
			delete(markers, st.Ino)
			return unix.Renameat(end, name, away, name)
		}
		return nil
	}
	if err := w.begin(top); !errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	if !met {
		t.Error("what is above was not visited")
	}
	if w.search.reads > maxSearch+2*many {
		t.Errorf("%d parts of listings", w.search.reads)
	}
}

// A mover is a container that moves directories when they are opened, as inotify says.
type mover struct {
	notify int
	to     map[int32][2]string // by watch: from where to where
}

func newMover(t *testing.T) *mover {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return &mover{fd, map[int32][2]string{}}
}

func (m *mover) watch(t *testing.T, from, to string) {
	wd, err := unix.InotifyAddWatch(m.notify, from, unix.IN_OPEN|unix.IN_ONLYDIR)
	must(t, err)
	m.to[int32(wd)] = [2]string{from, to}
}

// run moves each directory once, until stop is closed, and counts them.
func (m *mover) run(stop <-chan struct{}) (moved int) {
	buf := make([]byte, 4096)
	for {
		n, err := unix.Read(m.notify, buf)
		for at := 0; err == nil && at+unix.SizeofInotifyEvent <= n; {
			wd := int32(binary.NativeEndian.Uint32(buf[at:]))
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(buf[at+12:])) // and the name
			if p, ok := m.to[wd]; ok && os.Rename(p[0], p[1]) == nil {
				moved++
				delete(m.to, wd)
			}
		}
		select {
		case <-stop:
			return moved
		default:
			runtime.Gosched()
		}
	}
}

// TestMeasureHidden: a container that moves a directory elsewhere as soon as it is opened
// hides nothing of what is listed after it.
func TestMeasureHidden(t *testing.T) {
	top := t.TempDir()
	all := listed(t, top, 8)
	const markers, data = 4, 20 << 20
	for i := range markers {
		for j := range 300 { // which take a while
			must(t, os.MkdirAll(fmt.Sprintf("%s/p/m%d/%d", all[0], i, j), 0o700))
		}
	}
	for _, dir := range []string{all[0] + "/p", all[7]} {
		must(t, os.WriteFile(dir+"/data", make([]byte, data/2), 0o600))
	}
	truth, err := Measure(t.Context(), top)
	must(t, err)
	const entries = 300*markers + markers
	if truth.Bytes < data || truth.Inodes < entries {
		t.Fatalf("%+v", truth)
	}
	var got []Usage
	moved := 0
	for range 10 {
		m := newMover(t)
		for i := range markers {
			at := func(dir int) string { return fmt.Sprintf("%s/m%d", all[dir], i) }
			in := fmt.Sprintf("%s/p/m%d", all[0], i)
			if _, err := os.Lstat(in); err != nil {
				must(t, os.Rename(at(4), in)) // back from the last time
			}
			m.watch(t, in, at(4))
		}
		stop, ended := make(chan struct{}), make(chan int)
		go func() { ended <- m.run(stop) }()
		u, err := Measure(t.Context(), top)
		close(stop)
		moved += <-ended
		if err != nil {
			t.Error(err)
		}
		got = append(got, u)
	}
	t.Logf("%d moves; %+v", moved, got)
	if moved == 0 {
		t.Error("nothing was moved")
	}
	low := slices.MinFunc(got, func(a, b Usage) int { return int(a.Bytes) - int(b.Bytes) })
	if low.Bytes < truth.Bytes || low.Inodes < truth.Inodes {
		t.Errorf("%+v at least, but there is %+v: %+v", low, truth, got)
	}
}
