// Package allocation remembers the resources that pods of this node were given,
// which differ from those they ask for while a resize does not fit. It reads and
// writes one small file for each pod below the kubelet's root directory.
package allocation

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"knarr/node/kubelet/statefile"
)

// Resources are those of one pod.
type Resources struct {
	UID types.UID `json:"uid"`
	// Containers are by name, init containers among them.
	Containers map[string]corev1.ResourceRequirements `json:"containers"`
	// Pod are those of the pod as a whole, if it has any.
	Pod *corev1.ResourceRequirements `json:"pod,omitempty"`
}

// Of are the resources a pod asks for.
func Of(pod *corev1.Pod) Resources {
	r := Resources{UID: pod.UID, Containers: map[string]corev1.ResourceRequirements{}, Pod: pod.Spec.Resources.DeepCopy()}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r.Containers[list[i].Name] = *list[i].Resources.DeepCopy()
		}
	}
	return r
}

// Apply returns the pod with these resources in place of those it asks for: the
// pod itself if they are the same.
func (r Resources) Apply(pod *corev1.Pod) *corev1.Pod {
	if r.UID != pod.UID || equality.Semantic.DeepEqual(r, Of(pod)) {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Spec.Resources = r.Pod.DeepCopy()
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if have, ok := r.Containers[list[i].Name]; ok {
				list[i].Resources = *have.DeepCopy()
			}
		}
	}
	return pod
}

// A Store keeps the resources of the node's pods.
type Store struct {
	dir string
	mu  sync.Mutex
	all map[types.UID]Resources
}

// Open reads what an earlier run of the kubelet kept below its root directory. A
// file that cannot be read counts as none.
func Open(root string) (*Store, error) {
	s := &Store{dir: filepath.Join(root, "allocated"), all: map[types.UID]Resources{}}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of allocated resources: %w", err)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("read the allocated resources: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		var r Resources
		err := errors.New("not written to its end")
		if !strings.HasSuffix(path, statefile.TmpSuffix) {
			err = statefile.Read(path, &r)
		}
		if err == nil && s.path(r.UID) != path {
			err = fmt.Errorf("it is about pod %q", r.UID)
		}
		if err != nil {
			slog.Warn("drop damaged record of allocated resources", "file", path, "err", err)
			_ = os.Remove(path)
			continue
		}
		s.all[r.UID] = r
	}
	return s, nil
}

// path is the file of a pod. Who makes pods names neither directory nor suffix:
// the UIDs of static pods are whatever their manifests say.
func (s *Store) path(uid types.UID) string {
	return filepath.Join(s.dir, fmt.Sprintf("%x", string(uid))+".json")
}

// Get are the resources a pod was given.
func (s *Store) Get(uid types.UID) (Resources, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.all[uid]
	return r, ok
}

// Allocated is the pod with the resources it was given; a pod that was given
// none yet is as it is. Of a pod that began and of which no record is left, the
// status in the API still tells.
func (s *Store) Allocated(pod *corev1.Pod) *corev1.Pod {
	if r, ok := s.Get(pod.UID); ok {
		return r.Apply(pod)
	}
	if pod.Status.StartTime != nil {
		return shown(pod).Apply(pod)
	}
	return pod
}

// shown are the resources that a pod's status says it has.
func shown(pod *corev1.Pod) Resources {
	r := Of(pod)
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			if have, ok := r.Containers[c.Name]; ok && c.AllocatedResources != nil && c.Resources != nil {
				have.Requests, have.Limits = c.AllocatedResources, c.Resources.Limits
				r.Containers[c.Name] = have
			}
		}
	}
	return r
}

// Set gives a pod what it asks for. If it cannot be written it counts until the
// kubelet ends.
func (s *Store) Set(pod *corev1.Pod) error {
	r := Of(pod)
	s.mu.Lock()
	defer s.mu.Unlock()
	if have, ok := s.all[pod.UID]; ok && equality.Semantic.DeepEqual(have, r) {
		return nil
	}
	s.all[pod.UID] = r
	if err := statefile.Write(s.path(pod.UID), r, false); err != nil {
		return fmt.Errorf("write the allocated resources: %w", err)
	}
	return nil
}

// Remove forgets a pod.
func (s *Store) Remove(uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.all[uid]; !ok {
		return nil
	}
	delete(s.all, uid)
	if err := os.Remove(s.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the allocated resources: %w", err)
	}
	return nil
}

// Pods are those that were given resources.
func (s *Store) Pods() []types.UID {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]types.UID, 0, len(s.all))
	for uid := range s.all {
		out = append(out, uid)
	}
	return out
}
