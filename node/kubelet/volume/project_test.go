package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"knarr/internal/projectquota"
	"knarr/node/kubelet/podfile"
	"knarr/node/kubelet/podtest"
)

// fakeProjects are quotas that are kept for directories as an inode keeps them: whatever name
// these have. Every project has the same use.
type fakeProjects struct {
	t      *testing.T
	of     map[uint64]projectquota.Project // by inode
	around projectquota.Project            // of directories that are not among them
	taken  int                             // how many answers say that one is taken
	fails  error
}

func (f *fakeProjects) inode(dir *os.File) uint64 {
	var st unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &st); err != nil {
		f.t.Fatal(err)
	}
	return st.Ino
}

func (f *fakeProjects) Of(dir *os.File) (projectquota.Project, error) {
	if p, ok := f.of[f.inode(dir)]; ok {
		return p, nil
	}
	return f.around, nil
}

func (f *fakeProjects) Join(dir *os.File, project uint32) error {
	if f.fails != nil {
		return f.fails
	}
	f.of[f.inode(dir)] = projectquota.Project{ID: project, Passes: true}
	return nil
}

func (f *fakeProjects) Taken(*os.File, uint32) (bool, error) {
	f.taken--
	return f.taken >= 0, nil
}

func (f *fakeProjects) Use(_ *os.File, project uint32) (projectquota.Use, error) {
	if !projectquota.EmptyDirs.Has(project) {
		f.t.Errorf("asked for project %x", project)
	}
	return projectquota.Use{Bytes: 4096, Inodes: 2}, nil
}

// withEmptyDirs is a pod with two volumes on the node's disk.
func withEmptyDirs(hostUsers *bool) *corev1.Pod {
	pod := podWith(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "w", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	pod.Spec.HostUsers = hostUsers
	return podtest.Use(pod)
}

// TestProjects: a volume of a pod that has users of its own is a project of its own, and
// stays the same; one of another pod, which could change it, never counts as one.
func TestProjects(t *testing.T) {
	inRange := projectquota.Project{ID: uint32(projectquota.EmptyDirs) + 1, Passes: true}
	for _, c := range []struct {
		name      string
		hostUsers *bool
		projects  *fakeProjects // nil: the feature is off
		counted   bool
	}{
		{"users of its own", new(false), &fakeProjects{taken: 3}, true},
		{"the node's users", new(true), &fakeProjects{}, false},
		{"the node's users by default", nil, &fakeProjects{}, false},
		{"a project of the administrators' around it", new(false), &fakeProjects{around: projectquota.Project{ID: 7, Passes: true}}, false},
		{"a project of another emptyDir around it", new(false), &fakeProjects{around: inRange}, false},
		{"a kernel that refuses", new(false), &fakeProjects{fails: errors.New("refused")}, false},
		{"the feature off", new(false), nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir, pod := t.TempDir(), withEmptyDirs(c.hostUsers)
			start := func() *Manager {
				m := New(Config{PodsDir: dir})
				if c.projects != nil {
					m.Projects = c.projects
				}
				return m
			}
			if c.projects != nil {
				c.projects.t, c.projects.of = t, map[uint64]projectquota.Project{}
			}
			for range 2 { // a restart
				m := start()
				got, _, err := m.Mount(t.Context(), pod, nil)
				if err != nil {
					t.Fatal(err)
				}
				for name, v := range got {
					u, err := m.Usage(pod, v.Path)
					if c.counted != (err == nil) || err != nil && !errors.Is(err, ErrNoProject) {
						t.Errorf("%s: %v", name, err)
					}
					if c.counted && u != (podfile.Usage{Bytes: 4096, Inodes: 2}) {
						t.Errorf("%s: %+v", name, u)
					}
					if _, err := m.Usage(withEmptyDirs(nil), v.Path); !errors.Is(err, ErrNoProject) {
						t.Errorf("%s of a pod that could have changed its project: %v", name, err)
					}
				}
			}
			if c.projects == nil {
				return
			}
			ids := map[uint32]bool{}
			for _, p := range c.projects.of {
				ids[p.ID] = true
			}
			if want := map[bool]int{true: 2}[c.counted]; len(ids) != want || len(c.projects.of) != want {
				t.Errorf("projects: %v, want %d", c.projects.of, want)
			}
			m := start()
			if err := m.Unmount(t.Context(), "u"); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "u")); !os.IsNotExist(err) {
				t.Errorf("the pod's directory: %v", err)
			}
		})
	}
}

// TestOwnProject: a directory is counted by a project that it has alone, of the range of
// emptyDirs, and that what is in it has too.
func TestOwnProject(t *testing.T) {
	first := uint32(projectquota.EmptyDirs)
	for _, c := range []struct {
		dir, around projectquota.Project
		want        bool
	}{
		{projectquota.Project{ID: first, Passes: true}, projectquota.Project{}, true},
		{projectquota.Project{ID: first + 9, Passes: true}, projectquota.Project{ID: first}, true},
		{projectquota.Project{ID: first}, projectquota.Project{}, false},
		{projectquota.Project{ID: first, Passes: true}, projectquota.Project{ID: first, Passes: true}, false},
		{projectquota.Project{ID: first, Passes: true}, projectquota.Project{ID: first}, false},
		{projectquota.Project{ID: uint32(projectquota.Volumes), Passes: true}, projectquota.Project{}, false},
		{projectquota.Project{ID: 1048577, Passes: true}, projectquota.Project{}, false},
		{projectquota.Project{}, projectquota.Project{}, false},
	} {
		if got := ownProject(c.dir, c.around); got != c.want {
			t.Errorf("%+v in %+v: %v", c.dir, c.around, got)
		}
	}
	for p, want := range map[projectquota.Project]bool{{}: true, {ID: 7}: false, {Passes: true}: false, {ID: first, Passes: true}: false} {
		if got := joins(p); got != want {
			t.Errorf("%+v joins: %v", p, got)
		}
	}
}
