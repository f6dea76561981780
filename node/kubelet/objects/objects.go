// Package objects keeps the configMaps and secrets that pods of this node use,
// and nothing else: each is watched by its name while a pod refers to it. It
// reads them from the API server and writes nothing.
package objects

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"knarr/internal/run"
)

// ID names an object a pod uses.
type ID struct {
	Secret          bool
	Namespace, Name string
}

func (id ID) resource() schema.GroupResource {
	if id.Secret {
		return schema.GroupResource{Resource: "secret"}
	}
	return schema.GroupResource{Resource: "configmap"}
}

// A Store watches what is referred to.
type Store struct {
	client  kubernetes.Interface
	changed func(types.UID)

	ctx   context.Context
	wg    run.Group
	mu    sync.Mutex
	all   map[ID]*entry
	use   map[types.UID]map[ID]bool
	of    map[string]int       // by namespace, how many are followed
	short map[types.UID]string // pods with some that are not followed, and their namespace
}

// MaxOfNamespace is how many configMaps and secrets of a namespace a node follows. Each
// costs it and the API server a watch, some 28 kB and three goroutines, and a pod of one
// megabyte can name eighty thousand, which need not be there.
const MaxOfNamespace = 4000

type entry struct {
	cancel context.CancelFunc
	synced chan struct{}
	once   sync.Once
	obj    runtime.Object
	err    error
	users  map[types.UID]bool
}

// New returns a Store that ends with ctx and calls changed for each pod that
// uses an object that changed.
func New(ctx context.Context, client kubernetes.Interface, changed func(types.UID)) *Store {
	return &Store{client: client, changed: changed, ctx: ctx,
		all: map[ID]*entry{}, use: map[types.UID]map[ID]bool{}, of: map[string]int{}, short: map[types.UID]string{}}
}

// Wait returns when all watches have ended.
func (s *Store) Wait() { s.wg.Wait() }

// Use says what a pod refers to; watches of what nobody refers to end. What a namespace
// has too many of is not followed: the pod is told by changed when there is room.
func (s *Store) Use(uid types.UID, ids map[ID]bool) {
	for _, waiting := range s.follows(uid, ids) {
		s.changed(waiting)
	}
}

// Short says that not all that a pod refers to is followed.
func (s *Store) Short(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, short := s.short[uid]
	return short
}

// follows is Use, and gives the pods for which there may be room now.
func (s *Store) follows(uid types.UID, ids map[ID]bool) (waiting []types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.short, uid)
	freed := ""
	for id := range s.use[uid] {
		if ids[id] {
			continue
		}
		e := s.all[id]
		delete(e.users, uid)
		if len(e.users) == 0 {
			e.cancel()
			delete(s.all, id)
			if s.of[id.Namespace]--; s.of[id.Namespace] == 0 {
				delete(s.of, id.Namespace)
			}
			freed = id.Namespace
		}
	}
	kept := map[ID]bool{}
	for id := range ids {
		e := s.all[id]
		if e == nil && s.of[id.Namespace] >= MaxOfNamespace {
			s.short[uid] = id.Namespace
			continue
		}
		if e == nil {
			ctx, cancel := context.WithCancel(s.ctx)
			e = &entry{cancel: cancel, synced: make(chan struct{}), users: map[types.UID]bool{}}
			s.all[id] = e
			s.of[id.Namespace]++
			s.wg.Go("kubelet: follow an object", func() { s.follow(ctx, id, e) })
		}
		e.users[uid] = true
		kept[id] = true
	}
	if len(kept) == 0 {
		delete(s.use, uid)
	} else {
		s.use[uid] = kept
	}
	if freed != "" && s.of[freed] < MaxOfNamespace {
		for other, namespace := range s.short {
			if namespace == freed {
				waiting = append(waiting, other)
			}
		}
	}
	return waiting
}

// ConfigMap answers with a configMap, waiting for its first read.
func (s *Store) ConfigMap(namespace, name string) (*corev1.ConfigMap, error) {
	o, err := s.get(ID{Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return o.(*corev1.ConfigMap), nil
}

// Secret answers with a secret, waiting for its first read.
func (s *Store) Secret(namespace, name string) (*corev1.Secret, error) {
	o, err := s.get(ID{Secret: true, Namespace: namespace, Name: name})
	if err != nil {
		return nil, err
	}
	return o.(*corev1.Secret), nil
}

// LacksSecret says, without waiting, whether a secret cannot be had; it is not known until it
// was read for the first time.
func (s *Store) LacksSecret(namespace, name string) (lacks, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.all[ID{Secret: true, Namespace: namespace, Name: name}]
	if e == nil {
		return false, false
	}
	select {
	case <-e.synced:
		return e.err != nil || e.obj == nil, true
	default:
		return false, false
	}
}

func (s *Store) get(id ID) (runtime.Object, error) {
	s.mu.Lock()
	e, full := s.all[id], s.of[id.Namespace] >= MaxOfNamespace
	s.mu.Unlock()
	if e == nil && full {
		return nil, fmt.Errorf("%s %q is one too many: pods of namespace %q on this node refer to more than %d ConfigMaps and Secrets",
			id.resource().Resource, id.Name, id.Namespace, MaxOfNamespace)
	}
	if e == nil {
		return nil, fmt.Errorf("object %q/%q not registered", id.Namespace, id.Name)
	}
	timeout := time.NewTimer(10 * time.Second)
	defer timeout.Stop()
	select {
	case <-e.synced:
	case <-timeout.C:
		return nil, fmt.Errorf("failed to sync %s cache: timed out waiting for the condition", id.resource().Resource)
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.err != nil {
		return nil, e.err
	}
	if e.obj == nil {
		return nil, apierrors.NewNotFound(id.resource(), id.Name)
	}
	return e.obj, nil
}

// follow reads the object, then watches it until ctx ends.
func (s *Store) follow(ctx context.Context, id ID, e *entry) {
	for wait := time.Duration(0); ctx.Err() == nil; {
		pause(ctx, wait)
		version, err := s.read(ctx, id, e)
		if err == nil {
			if immutable(e.obj) {
				return
			}
			err = s.watch(ctx, id, e, version)
		}
		if err == nil {
			wait = 0
			continue
		}
		wait = min(max(2*wait, 200*time.Millisecond), 30*time.Second)
	}
}

func pause(ctx context.Context, d time.Duration) {
	if d == 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func immutable(o runtime.Object) bool {
	switch o := o.(type) {
	case *corev1.ConfigMap:
		return o.Immutable != nil && *o.Immutable
	case *corev1.Secret:
		return o.Immutable != nil && *o.Immutable
	}
	return false
}

// read lists by name, which gives a version to watch from even if the object
// does not exist yet.
func (s *Store) read(ctx context.Context, id ID, e *entry) (version string, err error) {
	opts := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", id.Name).String()}
	var found runtime.Object
	if id.Secret {
		var l *corev1.SecretList
		if l, err = s.client.CoreV1().Secrets(id.Namespace).List(ctx, opts); err == nil {
			version = l.ResourceVersion
			if len(l.Items) > 0 {
				found = &l.Items[0]
			}
		}
	} else {
		var l *corev1.ConfigMapList
		if l, err = s.client.CoreV1().ConfigMaps(id.Namespace).List(ctx, opts); err == nil {
			version = l.ResourceVersion
			if len(l.Items) > 0 {
				found = &l.Items[0]
			}
		}
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		s.set(e, nil, err, false)
		return "", err
	}
	s.set(e, found, nil, true)
	return version, nil
}

func (s *Store) watch(ctx context.Context, id ID, e *entry, version string) error {
	opts := metav1.ListOptions{
		FieldSelector:       fields.OneTermEqualSelector("metadata.name", id.Name).String(),
		ResourceVersion:     version,
		AllowWatchBookmarks: true,
	}
	var w watch.Interface
	var err error
	if id.Secret {
		w, err = s.client.CoreV1().Secrets(id.Namespace).Watch(ctx, opts)
	} else {
		w, err = s.client.CoreV1().ConfigMaps(id.Namespace).Watch(ctx, opts)
	}
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			switch ev.Type {
			case watch.Added, watch.Modified:
				s.set(e, ev.Object, nil, true)
				if immutable(ev.Object) {
					<-ctx.Done()
					return nil
				}
			case watch.Deleted:
				s.set(e, nil, nil, true)
			case watch.Error:
				return apierrors.FromObject(ev.Object)
			}
		}
	}
}

// set keeps what was learnt. A failed read keeps what was known before.
func (s *Store) set(e *entry, obj runtime.Object, err error, ok bool) {
	s.mu.Lock()
	if !ok && e.obj != nil {
		s.mu.Unlock()
		return
	}
	same := e.err == nil && err == nil && version(e.obj) == version(obj)
	first := false
	e.obj, e.err = obj, err
	e.once.Do(func() { first = true; close(e.synced) })
	users := make([]types.UID, 0, len(e.users))
	for u := range e.users {
		users = append(users, u)
	}
	s.mu.Unlock()
	if same || first {
		return
	}
	for _, u := range users {
		s.changed(u)
	}
}

func version(o runtime.Object) string {
	if m, ok := o.(metav1.Object); ok && m != nil {
		return string(m.GetUID()) + m.GetResourceVersion()
	}
	return ""
}

// Of lists what a pod refers to.
func Of(pod *corev1.Pod) map[ID]bool {
	ids := map[ID]bool{}
	add := func(secret bool, name string) {
		if name != "" {
			ids[ID{secret, pod.Namespace, name}] = true
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add(true, s.Name)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.ConfigMap != nil:
			add(false, v.ConfigMap.Name)
		case v.Secret != nil:
			add(true, v.Secret.SecretName)
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				if s.ConfigMap != nil {
					add(false, s.ConfigMap.Name)
				}
				if s.Secret != nil {
					add(true, s.Secret.Name)
				}
			}
		case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
			add(true, v.CSI.NodePublishSecretRef.Name)
		}
	}
	env := func(c *corev1.Container) {
		for _, f := range c.EnvFrom {
			if f.ConfigMapRef != nil {
				add(false, f.ConfigMapRef.Name)
			}
			if f.SecretRef != nil {
				add(true, f.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				add(false, r.Name)
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				add(true, r.Name)
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		env(&pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		env(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		env(&c)
	}
	return ids
}
