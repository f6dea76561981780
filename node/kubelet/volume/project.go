package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"knarr/internal/dirfd"
	"knarr/internal/projectquota"
	"knarr/node/kubelet/podfile"
)

// Projects are the project quotas of file systems, asked by directories that are open.
type Projects interface {
	Of(dir *os.File) (projectquota.Project, error)
	Join(dir *os.File, project uint32) error
	// Taken says whether a project has files or a limit, or is another's on this machine.
	Taken(dir *os.File, project uint32) (bool, error)
	Use(dir *os.File, project uint32) (projectquota.Use, error)
}

// kernelProjects are the kernel's.
type kernelProjects struct{}

// Of is the project of a directory.
func (kernelProjects) Of(dir *os.File) (projectquota.Project, error) { return projectquota.Of(dir) }

// Join makes an empty directory part of a project.
func (kernelProjects) Join(dir *os.File, project uint32) error {
	return projectquota.Join(dir, project)
}

// Taken says whether a project is of use to anybody.
func (kernelProjects) Taken(dir *os.File, project uint32) (bool, error) {
	if named, err := projectquota.Named(project); named || err != nil {
		return named, err
	}
	return projectquota.Taken(dir, project)
}

// Use is what a project has.
func (kernelProjects) Use(dir *os.File, project uint32) (projectquota.Use, error) {
	return projectquota.UseOf(dir, project)
}

// NewProjects are the kernel's for directories below dir, or why its file system has none.
func NewProjects(dir string) (Projects, error) {
	at, err := dirfd.Open(dir)
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	f, err := openDirAt(at, ".", dir, 0) // pods' directories are mounted on themselves
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := projectquota.Counted(f); err != nil {
		return nil, err
	}
	return kernelProjects{}, nil
}

// confined says whether a pod can change nothing of projects: it has users of its own. Others
// may make their files part of any project, and so of none. Pure.
func confined(pod *corev1.Pod) bool { return pod.Spec.HostUsers != nil && !*pod.Spec.HostUsers }

// joins says whether a new directory gets a project of its own: not if the directory around
// it passes one on, by which its administrators count or limit all that is below. Pure.
func joins(p projectquota.Project) bool { return p == projectquota.Project{} }

// ownProject says whether a directory has a project of its own, which counts what is in it and
// nothing else: it was given one when it was made. Pure.
func ownProject(dir, around projectquota.Project) bool {
	return dir.Passes && projectquota.EmptyDirs.Has(dir.ID) && dir.ID != around.ID
}

// joinProject makes an empty directory, and all that will be in it, part of a project that
// nothing else has, if its pod is one whose volumes are measured so. The kernel's own record
// of the directory is the only one: it goes with the directory, whoever removes it when, and
// the project with the last of its files. The project gets no limit, for those of volumes are
// held by evictions, so that nothing needs to be taken back.
func (m *Manager) joinProject(pod *corev1.Pod, path string) error {
	if m.Projects == nil || !confined(pod) {
		return nil
	}
	dir, err := openDir(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	if has, err := m.Projects.Of(dir); err != nil || !joins(has) {
		return err
	}
	m.projectMu.Lock()
	defer m.projectMu.Unlock()
	free, err := projectquota.EmptyDirs.Free(func(p uint32) (bool, error) { return m.Projects.Taken(dir, p) })
	if err != nil {
		return err
	}
	return m.Projects.Join(dir, free)
}

// ErrNoProject is a volume that has no project of its own: its files are to be counted.
var ErrNoProject = errors.New("the volume has no project of its own")

// Usage is what a volume of a pod takes up, as its file system has counted it: with files that
// are open and have no name any more, and wherever in the volume the pod moves others. Not so
// of all: where it is an error, files are to be counted one by one.
func (m *Manager) Usage(pod *corev1.Pod, path string) (podfile.Usage, error) {
	if m.Projects == nil || !confined(pod) {
		return podfile.Usage{}, ErrNoProject
	}
	around, err := openDir(filepath.Dir(path))
	if err != nil {
		return podfile.Usage{}, err
	}
	defer around.Close()
	dir, err := openDir(path)
	if errors.Is(err, unix.EXDEV) {
		return podfile.Usage{}, ErrNoProject
	}
	if err != nil {
		return podfile.Usage{}, err
	}
	defer dir.Close()
	aroundHas, err := m.Projects.Of(around)
	if err != nil {
		return podfile.Usage{}, err
	}
	has, err := m.Projects.Of(dir)
	if err != nil {
		return podfile.Usage{}, err
	}
	if !ownProject(has, aroundHas) {
		return podfile.Usage{}, ErrNoProject
	}
	use, err := m.Projects.Use(dir, has.ID)
	return podfile.Usage{Bytes: uint64(use.Bytes), Inodes: uint64(use.Inodes)}, err
}

// openDir opens a directory whose path only the node writes, and that nothing is mounted on.
func openDir(path string) (*os.File, error) {
	parent, err := dirfd.Open(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer unix.Close(parent)
	return openDirAt(parent, filepath.Base(path), path, unix.RESOLVE_NO_XDEV|unix.RESOLVE_BENEATH)
}

func openDirAt(parent int, name, path string, resolve uint64) (*os.File, error) {
	fd, err := dirfd.Openat2(parent, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0, resolve)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}
