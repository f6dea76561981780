package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"knarr/internal/need"
	"knarr/internal/projectquota"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func (s *Store) must(t *testing.T, r Request) Volume {
	t.Helper()
	r.Name = r.ID
	v, err := s.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// withImages is a store that can have images, as root.
func withImages(t *testing.T) *Store {
	need.Root(t)
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	if err := s.Images(); err != nil {
		t.Skip(err)
	}
	return s
}

func TestDirectory(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	r := Request{ID: "pvc-1_default_data", Name: "pvc-1", Size: 1000, Limit: None}
	v, err := s.Create(t.Context(), r)
	ok(t, err)
	st, err := os.Stat(s.path(v.ID))
	ok(t, err)
	if st.Mode().Perm() != 0o777 || v.Size != 4096 || v.Limit != None {
		t.Errorf("mode %o, %+v", st.Mode().Perm(), v)
	}
	if again, err := s.Create(t.Context(), r); err != nil || again != v {
		t.Errorf("again: %+v, %v", again, err)
	}
	r.Size = 10000
	if _, err := s.Create(t.Context(), r); !errors.Is(err, ErrExists) {
		t.Errorf("the same name, larger: %v", err)
	}
	if _, err := s.Create(t.Context(), Request{ID: "big", Name: "big", Size: 1 << 60, Limit: None}); !errors.Is(err, ErrNoSpace) {
		t.Errorf("too large: %v", err)
	}
	if !s.quota {
		if _, err := s.Create(t.Context(), Request{ID: "q", Name: "q", Size: 1, Limit: ProjectQuota}); !errors.Is(err, ErrLimit) {
			t.Errorf("without quotas: %v", err)
		}
	}
	ok(t, s.Delete(v.ID))
	ok(t, s.Delete(v.ID))
	if left, _ := filepath.Glob(s.path("[^.]*")); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// TestDeleteFollowsNothing: what a container has linked to stays, and so does
// what has no record.
func TestDeleteFollowsNothing(t *testing.T) {
	top := t.TempDir()
	outside := filepath.Join(top, "outside")
	ok(t, os.MkdirAll(filepath.Join(outside, "dir"), 0o755))
	ok(t, os.WriteFile(filepath.Join(outside, "dir", "file"), []byte("x"), 0o644))
	s := open(t, filepath.Join(top, "storage"))
	v := s.must(t, Request{ID: "v", Size: 1, Limit: None})
	ok(t, os.Symlink(outside, s.path(v.ID, "link")))
	ok(t, os.Symlink("../../outside/dir", s.path(v.ID, "relative")))
	ok(t, os.Mkdir(s.path("theirs"), 0o755))
	for _, id := range []string{"../outside", "", ".volumes", "v/link", "v/../../outside"} {
		ok(t, s.Delete(id))
	}
	if err := s.Delete("theirs"); err == nil {
		t.Error("a directory that is somebody else's counts as deleted")
	}
	c := s.must(t, Request{ID: "copy", Size: 1 << 20, From: "v", Limit: ""})
	if target, err := os.Readlink(s.path(c.ID, "link")); err != nil || target != outside {
		t.Errorf("copied link: %q, %v", target, err)
	}
	ok(t, s.Delete(v.ID))
	ok(t, s.Delete(c.ID))
	for _, path := range []string{filepath.Join(outside, "dir", "file"), s.path("theirs")} {
		if _, err := os.Lstat(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Create(t.Context(), Request{ID: "theirs", Name: "theirs", Size: 1, Limit: None}); !errors.Is(err, ErrExists) {
		t.Errorf("a directory that is somebody else's: %v", err)
	}
}

// TestCrash: whatever step a process ended at, the next start knows what is a
// volume, and removes the rest.
func TestCrash(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "storage")
	s := open(t, dir)
	whole := s.must(t, Request{ID: "whole", Size: 1, Limit: None})
	recorded := Volume{ID: "recorded", Name: "recorded", Limit: None}
	ok(t, s.note(volumesDir, &recorded))
	ok(t, os.MkdirAll(s.path(unfinishedDir, "half", "deep"), 0o755))
	ok(t, os.WriteFile(s.path(volumesDir, "broken.json"), []byte("{"), 0o600))
	ok(t, os.Mkdir(s.path("broken"), 0o755))
	s = open(t, dir)
	if len(s.volumes) != 1 || *s.volumes["whole"] != whole {
		t.Errorf("volumes: %v", s.volumes)
	}
	for path, want := range map[string]bool{
		s.path("whole"): true, s.path("broken"): true,
		s.path(unfinishedDir, "half"): false, s.path(volumesDir, "recorded.json"): false,
	} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
	s.must(t, Request{ID: "recorded", Size: 1, Limit: None})
}

// TestUnreadableRecord: a volume whose record says nothing is not deleted, and does
// not count as deleted.
func TestUnreadableRecord(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "storage")
	s := open(t, dir)
	for _, id := range []string{"broken", "swapped"} {
		s.must(t, Request{ID: id, Size: 1, Limit: None})
	}
	_, err := s.CreateSnapshot(t.Context(), "snap", "snap", "broken")
	ok(t, err)
	ok(t, os.WriteFile(s.path(volumesDir, "broken.json"), []byte("{"), 0o600))
	ok(t, os.WriteFile(s.path(volumesDir, "swapped.json"), []byte(`{"id":"other"}`), 0o600))
	ok(t, os.WriteFile(s.path(snapshotsDir, "snap.json"), nil, 0o600))
	s = open(t, dir)
	for _, c := range []struct {
		remove       func(string) error
		id           string
		data, record string
	}{
		{s.Delete, "broken", s.path("broken"), s.path(volumesDir, "broken.json")},
		{s.Delete, "swapped", s.path("swapped"), s.path(volumesDir, "swapped.json")},
		{s.DeleteSnapshot, "snap", s.path(snapshotsDir, "snap"), s.path(snapshotsDir, "snap.json")},
	} {
		if err := c.remove(c.id); err == nil || !strings.Contains(err.Error(), c.data+" ") || !strings.Contains(err.Error(), c.record) {
			t.Errorf("delete %s: %v", c.id, err)
		}
		if _, err := os.Lstat(c.data); err != nil {
			t.Error(err)
		}
	}
}

// TestNoImages: why there are no images is in the error, and it is tried again.
func TestNoImages(t *testing.T) {
	s := withImages(t)
	s.device = false
	r := Request{ID: "block", Name: "block", Size: 1, Block: true}
	for _, wish := range []Request{r, {ID: "i", Name: "i", Size: 1, Limit: Image}} {
		ok(t, os.WriteFile(s.path(unfinishedDir, ".try"), nil, 0o600)) // where the trial's directory would be
		if _, err := s.Create(t.Context(), wish); !errors.Is(err, ErrLimit) || !errors.Is(err, unix.ENOTDIR) {
			t.Errorf("%s: %v", wish.ID, err)
		}
	}
	s.must(t, r)
}

// TestTool: a program that is missing is named, and what has it.
func TestTool(t *testing.T) {
	if _, err := tool("mkfs.missing"); err == nil || err.Error() != "mkfs.missing is not installed; install e2fsprogs" {
		t.Error(err)
	}
}

// TestCopy: a snapshot and a copy of it have everything that the volume had when
// it was taken.
func TestCopy(t *testing.T) {
	need.Root(t)
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	v := s.must(t, Request{ID: "v", Size: 1 << 20, Limit: None})
	at := func(id string, elem ...string) string { return s.path(append([]string{id}, elem...)...) }
	ok(t, os.Mkdir(at("v", "d"), 0o750))
	ok(t, os.WriteFile(at("v", "d", "f"), []byte("hello"), 0o640))
	ok(t, os.Chown(at("v", "d", "f"), 1000, 2000))
	ok(t, os.Link(at("v", "d", "f"), at("v", "second")))
	ok(t, unix.Mkfifo(at("v", "pipe"), 0o600))
	ok(t, os.WriteFile(at("v", "sparse"), nil, 0o600))
	ok(t, os.Truncate(at("v", "sparse"), 1<<40))
	snapshot, err := s.CreateSnapshot(t.Context(), "snap", "snap", v.ID)
	ok(t, err)
	ok(t, os.WriteFile(at("v", "later"), nil, 0o600))
	again, err := s.CreateSnapshot(t.Context(), "snap", "snap", v.ID)
	if err != nil || again != snapshot {
		t.Errorf("again: %+v, %v", again, err)
	}
	ok(t, s.Delete("v"))
	if _, err := s.Create(t.Context(), Request{ID: "small", Name: "small", Size: 4096, From: "snap", Snapshot: true}); !errors.Is(err, ErrExists) {
		t.Errorf("smaller than its source: %v", err)
	}
	s.must(t, Request{ID: "c", Size: 1 << 20, From: "snap", Snapshot: true})
	b, err := os.ReadFile(at("c", "d", "f"))
	ok(t, err)
	var first, second, pipe, sparse, root unix.Stat_t
	for path, st := range map[string]*unix.Stat_t{at("c", "d", "f"): &first, at("c", "second"): &second, at("c", "pipe"): &pipe, at("c", "sparse"): &sparse, at("c"): &root} {
		ok(t, unix.Lstat(path, st))
	}
	if string(b) != "hello" || first.Uid != 1000 || first.Gid != 2000 || first.Mode&0o7777 != 0o640 || first.Ino != second.Ino ||
		pipe.Mode&unix.S_IFMT != unix.S_IFIFO || sparse.Size != 1<<40 || sparse.Blocks > 100 || root.Mode&0o7777 != 0o777 {
		t.Errorf("%q %+v %+v %+v %+v %o", b, first, second, pipe, sparse, root.Mode)
	}
	if _, err := os.Lstat(at("c", "later")); err == nil {
		t.Error("the copy has what came after the snapshot")
	}
	ok(t, s.DeleteSnapshot("snap"))
	ok(t, s.DeleteSnapshot("snap"))
}

// TestLinks: a file with several names is copied once, however long their paths are, and a
// tree with more of them than may be remembered is not copied at all.
func TestLinks(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	v := s.must(t, Request{ID: "v", Size: 1 << 20, Limit: None})
	long := strings.Repeat("d", 250)
	deep := func(id string) (dir string) { // which a path reaches that begins there
		t.Helper()
		at := filepath.Join("/proc/self/fd", strconv.Itoa(int(opened(t, s.path(id)).Fd())))
		for range 20 {
			_ = os.Mkdir(filepath.Join(at, long), 0o700)
			at = filepath.Join("/proc/self/fd", strconv.Itoa(int(opened(t, filepath.Join(at, long)).Fd())))
		}
		return at
	}
	at := deep(v.ID)
	ok(t, os.WriteFile(filepath.Join(at, "a"), []byte("x"), 0o600))
	ok(t, os.Link(filepath.Join(at, "a"), filepath.Join(at, "b")))
	for i := range 10 {
		name := s.path(v.ID, fmt.Sprint("file", i))
		ok(t, os.WriteFile(name, nil, 0o600))
		ok(t, os.Link(name, name+"b"))
	}
	s.must(t, Request{ID: "c", Size: 1 << 20, From: v.ID})
	at = deep("c")
	var a, b unix.Stat_t
	ok(t, unix.Lstat(filepath.Join(at, "a"), &a))
	ok(t, unix.Lstat(filepath.Join(at, "b"), &b))
	if a.Ino != b.Ino || a.Nlink != 2 || a.Size != 1 {
		t.Errorf("the copy has %+v and %+v", a, b)
	}
	s.linkMemory = 10 * linkCost
	if _, err := s.Create(t.Context(), Request{ID: "d", Name: "d", Size: 1 << 20, From: v.ID}); !errors.Is(err, errManyLinks) {
		t.Errorf("a clone: %v", err)
	}
	if _, err := s.CreateSnapshot(t.Context(), "snap", "snap", v.ID); !errors.Is(err, errManyLinks) {
		t.Errorf("a snapshot: %v", err)
	}
}

// opened is a directory that is open until the test ends.
func opened(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	ok(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// fillUp writes until there is no more room, and gives what fit.
func fillUp(t *testing.T, path string) (size int64, err error) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	ok(t, err)
	defer f.Close()
	piece := make([]byte, 1<<20)
	for range 200 {
		n, err := f.Write(piece)
		if size += int64(n); err != nil {
			return size, err
		}
	}
	return size, nil
}

// TestImage: a volume that is full is so alone, grows while it is in use, and can
// be copied then.
func TestImage(t *testing.T) {
	s := withImages(t)
	top := t.TempDir()
	v := s.must(t, Request{ID: "v", Size: 20 << 20, Limit: Image})
	other := s.must(t, Request{ID: "other", Size: 20 << 20, Limit: Image})
	stage, target, second := filepath.Join(top, "stage"), filepath.Join(top, "target"), filepath.Join(top, "other")
	t.Cleanup(func() { _ = unmountBelow(top) })
	ok(t, s.Stage(v.ID, stage))
	ok(t, s.Stage(v.ID, stage))
	ok(t, s.Publish(v.ID, stage, target, 0))
	ok(t, s.Publish(v.ID, stage, target, 0))
	ok(t, s.Stage(other.ID, second))
	entries, err := os.ReadDir(target)
	st, serr := os.Stat(target)
	if err != nil || serr != nil || len(entries) > 0 || st.Mode().Perm() != 0o777 {
		t.Errorf("an empty volume has %v, mode %v; %v %v", entries, st.Mode(), err, serr)
	}
	before, err := fillUp(t, filepath.Join(target, "full"))
	if !errors.Is(err, unix.ENOSPC) || before < 10<<20 || before > 20<<20 {
		t.Errorf("%d bytes fit, then %v", before, err)
	}
	ok(t, os.WriteFile(filepath.Join(second, "file"), make([]byte, 1<<20), 0o600))
	if err := s.Delete(v.ID); !errors.Is(err, ErrInUse) {
		t.Errorf("delete while it is in use: %v", err)
	}
	if _, err = s.Expand(v.ID, 60<<20); errors.Is(err, ErrPending) { // as it does where a capability is missing
		ok(t, s.Unpublish(v.ID, target))
		ok(t, s.Unstage(v.ID, stage))
		ok(t, s.Stage(v.ID, stage))
		ok(t, s.Publish(v.ID, stage, target, 0))
		_, err = s.Expand(v.ID, 60<<20)
	}
	ok(t, err)
	more, err := fillUp(t, filepath.Join(target, "full"))
	if !errors.Is(err, unix.ENOSPC) || more < 30<<20 {
		t.Errorf("%d bytes more fit once it is larger, then %v", more, err)
	}
	u, block, err := s.Usage(v.ID, target)
	if err != nil || block || u.Bytes < 50<<20 || u.Bytes > 60<<20 || u.BytesFree > 1<<20 || u.InodesUsed == 0 {
		t.Errorf("usage %+v, %v, %v", u, block, err)
	}
	_, err = s.CreateSnapshot(t.Context(), "snap", "snap", v.ID)
	ok(t, err)
	ok(t, os.Remove(filepath.Join(target, "full"))) // the volume is not frozen any more
	ok(t, s.Unpublish(v.ID, target))
	ok(t, s.Unpublish(v.ID, target))
	ok(t, s.Unstage(v.ID, stage))
	ok(t, s.Unstage(v.ID, stage))
	copied := s.must(t, Request{ID: "copy", Size: 80 << 20, From: "snap", Snapshot: true})
	ok(t, s.Stage(copied.ID, stage))
	if st, err := os.Stat(filepath.Join(stage, "full")); err != nil || st.Size() != before+more {
		t.Errorf("in the copy: %v, %v", st, err)
	}
	if more, err := fillUp(t, filepath.Join(stage, "full")); more < 10<<20 {
		t.Errorf("%d bytes more fit in a larger copy, then %v", more, err)
	}
	ok(t, s.Unstage(copied.ID, stage))
	ok(t, s.Unstage(other.ID, second))
	for _, id := range []string{v.ID, other.ID, copied.ID} {
		ok(t, s.Delete(id))
	}
	ok(t, s.DeleteSnapshot("snap"))
	noLoops(t, s)
}

// noLoops: nothing of the store has a loop device any more.
func noLoops(t *testing.T, s *Store) {
	t.Helper()
	all, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range all {
		if b, _ := os.ReadFile(f); strings.Contains(string(b), s.dir) {
			t.Errorf("%s: %s", f, b)
		}
	}
}

// TestBlock: a pod gets a device of the size, which grows.
func TestBlock(t *testing.T) {
	s := withImages(t)
	v := s.must(t, Request{ID: "b", Size: 1<<20 + 1, Block: true})
	if v.Size != 2<<20 {
		t.Errorf("%+v", v)
	}
	target := filepath.Join(t.TempDir(), "dir", "device")
	ok(t, s.Stage(v.ID, ""))
	ok(t, s.Publish(v.ID, "", target, 0))
	t.Cleanup(func() { _ = unmount(target); _ = Release(s.dir) })
	size := func() int64 {
		f, err := os.OpenFile(target, os.O_RDWR, 0)
		ok(t, err)
		defer f.Close()
		_, err = f.WriteString("data")
		ok(t, err)
		n, err := f.Seek(0, 2)
		ok(t, err)
		return n
	}
	if n := size(); n != 2<<20 {
		t.Errorf("%d bytes", n)
	}
	_, err := s.Expand(v.ID, 4<<20)
	ok(t, err)
	if n := size(); n != 4<<20 {
		t.Errorf("%d bytes once it is larger", n)
	}
	if u, block, err := s.Usage(v.ID, target); err != nil || !block || u.Bytes != 4<<20 {
		t.Errorf("%+v %v %v", u, block, err)
	}
	ok(t, s.Unpublish(v.ID, target))
	if _, err := os.Lstat(target); err == nil {
		t.Error("the target stays")
	}
	ok(t, s.Unstage(v.ID, ""))
	s.must(t, Request{ID: "c", Size: 4 << 20, Block: true, From: v.ID})
	b, err := os.ReadFile(s.path("c", imageFile))
	if err != nil || !strings.HasPrefix(string(b), "data") {
		t.Errorf("copy: %q, %v", b[:4], err)
	}
	ok(t, s.Delete(v.ID))
	noLoops(t, s)
}

// TestQuota needs a file system with project quotas, which few machines have.
func TestQuota(t *testing.T) {
	need.Root(t)
	s := open(t, filepath.Join(t.TempDir(), "storage"))
	if !s.quota {
		t.Skip("the file system of the temporary directory enforces no project quotas")
	}
	v := s.must(t, Request{ID: "v", Size: 8 << 20})
	if v.Limit != ProjectQuota {
		t.Fatalf("%+v", v)
	}
	use, err := projectUsage(s.dir, v.Project)
	if err != nil || use.ByteLimit != 8<<20 {
		t.Errorf("%+v, %v", use, err)
	}
	if n, err := fillUpAsContainer(t, s.path(v.ID, "full")); !errors.Is(err, unix.EDQUOT) && !errors.Is(err, unix.ENOSPC) || n < 6<<20 || n > 8<<20 {
		t.Errorf("%d bytes fit, then %v", n, err)
	}
	var st unix.Statfs_t
	ok(t, unix.Statfs(s.path(v.ID), &st))
	if size := int64(st.Blocks) * st.Bsize; size != 8<<20 {
		t.Errorf("df says %d", size)
	}
	_, err = s.Expand(v.ID, 16<<20)
	ok(t, err)
	if n, err := fillUpAsContainer(t, s.path(v.ID, "full")); n < 6<<20 || err == nil {
		t.Errorf("once it is larger: %d bytes more fit, then %v", n, err)
	}
	if use, err = projectUsage(s.dir, v.Project); err != nil || use.ByteLimit != 16<<20 {
		t.Errorf("once it is larger: %+v, %v", use, err)
	}
	s.must(t, Request{ID: "c", Size: 16 << 20, From: v.ID})
	snapshot, err := s.CreateSnapshot(t.Context(), "snap", "snap", v.ID)
	ok(t, err)
	if use, err := projectUsage(s.dir, snapshot.Project); err != nil || use.ByteLimit != 16<<20 || use.Bytes < 12<<20 || use.Inodes != 2 {
		t.Errorf("a snapshot of it: %+v, %v", use, err)
	}
	ok(t, s.Delete(v.ID))
	ok(t, s.Delete("c"))
	ok(t, s.DeleteSnapshot("snap"))
	if use, err = projectUsage(s.dir, snapshot.Project); err == nil && use != (projectquota.Use{}) {
		t.Errorf("once the snapshot is gone: %+v", use)
	}
	if use, err = projectUsage(s.dir, v.Project); err == nil && use.ByteLimit != 0 {
		t.Errorf("once it is gone: %+v", use)
	}
}

// fillUpAsContainer is fillUp without CAP_SYS_RESOURCE, which quotas do not hold
// for: containers do not have it.
func fillUpAsContainer(t *testing.T, path string) (size int64, err error) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		runtime.LockOSThread() // for good: the thread ends with what it has lost
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		if err = unix.Capget(&header, &data[0]); err == nil {
			data[0].Effective &^= 1 << unix.CAP_SYS_RESOURCE
			err = unix.Capset(&header, &data[0])
		}
		if err == nil {
			size, err = fillUp(t, path)
		}
	})
	wg.Wait()
	return size, err
}

func TestID(t *testing.T) {
	for _, c := range []struct{ name, namespace, claim, want string }{
		{"pvc-1", "default", "data-web-0", "pvc-1_default_data-web-0"},
		{"pvc-1", "", "", "pvc-1"},
		{"../../etc", "a/b", "c\x00d", "etc_a-b_c-d"},
		{"..", "..", "..", ""},
		{"-rf", "", "", "rf"},
		{"pvc-1", strings.Repeat("n", 63), strings.Repeat("c", 253), "pvc-1_" + strings.Repeat("n", 63) + "_" + strings.Repeat("c", 58)},
	} {
		got := ID(c.name, c.namespace, c.claim)
		if c.name == "../../etc" {
			got = got[len(got)-len(c.want):]
		}
		if c.name == ".." {
			if ValidID(got) != (got != "") {
				t.Errorf("%q", got)
			}
			continue
		}
		if got != c.want || !ValidID(got) {
			t.Errorf("%q: %q, want %q", c, got, c.want)
		}
	}
	for _, bad := range []string{"", ".", "..", "a/b", ".volumes", "-x", "a\x00", strings.Repeat("x", maxID+1), "ä"} {
		if ValidID(bad) {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestFlags(t *testing.T) {
	if f, err := Flags([]string{"ro", "noexec"}); err != nil || f != unix.MS_RDONLY|unix.MS_NOEXEC {
		t.Errorf("%x, %v", f, err)
	}
	if _, err := Flags([]string{"dax"}); err == nil {
		t.Error("an option that nothing knows passes")
	}
}
