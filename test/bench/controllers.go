package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"knarr/test/bench/rig"
)

var controllersLines = []line{
	{"10,000 Jobs in one namespace: to Complete", "/s", true, 0},
	{"10,000 Jobs in one namespace: control plane CPU per Job", "µs", false, 0},
	{"1,000 Services: a pod's readiness to its EndpointSlice", "/s", true, 0},
	{"1,000 Services: control plane CPU per change of a pod", "µs", false, 0},
	{"1,000 ReplicaSets: control plane CPU per pod that is none's", "µs", false, 0},
	{"StatefulSet of 500 with claims, in order", "/s", true, 0},
	{"namespace with 10,000 pods and 10,000 ConfigMaps: gone", "ms", false, 0},
	{"namespace with 10,000 pods and 10,000 ConfigMaps: control plane CPU", "ms", false, 0},
}

// runControllers measures loops whose cost could grow with what else a namespace has.
// Pods are on a node that is only an object: what its kubelet would write is written here.
func runControllers(ctx context.Context, r *run) error {
	for _, one := range []func(context.Context, *run, *loaded) error{jobs, servicesOfPods, strayPods, claimedSet, crowdedNamespace} {
		if err := r.loaded(ctx, one); err != nil {
			return err
		}
	}
	return nil
}

// A loaded is a control plane with its controllers, and clients for its load.
type loaded struct {
	*rig.Cluster
	client kubernetes.Interface
	pods   *raw
}

func (r *run) loaded(ctx context.Context, do func(context.Context, *run, *loaded) error) error {
	c, client, err := r.startPrepared(ctx, true)
	if err != nil {
		return err
	}
	defer c.Stop()
	l := &loaded{Cluster: c, client: client}
	if l.pods, err = newRaw(c); err != nil {
		return err
	}
	if err := makeNode(ctx, client, 0); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	beating := make(chan error, 1)
	wg.Go(func() { beating <- heartbeat(ctx, client) })
	if err := c.Rest(ctx); err != nil {
		return err
	}
	err = errors.Join(do(ctx, r, l), c.Alive())
	select {
	case beat := <-beating:
		err = errors.Join(err, beat)
	default:
	}
	return err
}

// heartbeat renews the node's lease as its kubelet would, until ctx ends: of a node that
// is lost no pod is ready.
func heartbeat(ctx context.Context, client kubernetes.Interface) error {
	leases := client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for {
		lease, err := leases.Get(ctx, nodeName, metav1.GetOptions{})
		now := metav1.NowMicro()
		switch {
		case apierrors.IsNotFound(err):
			_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: nodeName},
				Spec: coordinationv1.LeaseSpec{HolderIdentity: new(nodeName), LeaseDurationSeconds: new(int32(40)), RenewTime: &now}}, metav1.CreateOptions{})
		case err == nil:
			lease.Spec.RenewTime = &now
			_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the node's lease: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(10 * time.Second):
		}
	}
}

// nodeName is that of the first node of makeNode.
const nodeName = "node-0000"

// placed is a pod's specification on the only node: no scheduler is asked.
func placed(labels map[string]string) corev1.PodTemplateSpec {
	spec := pod("").Spec
	spec.NodeName = nodeName
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
}

// create makes n objects of a kind, as many at once as there are clients.
func (l *loaded) create(ctx context.Context, version, resource string, n int, object func(i int) runtime.Object) error {
	news, err := encodedAll(n, object)
	if err != nil {
		return err
	}
	at := l.pods.at(version, resource)
	_, _, err = each(ctx, clients, n, func(ctx context.Context, i int) error {
		_, err := at.do(ctx, http.MethodPost, "", protobufType, news[i], http.StatusCreated)
		return err
	})
	return err
}

// measured is how long something takes, and how much of the control plane's CPU.
func (l *loaded) measured(ctx context.Context, do func() error) (took, cpu time.Duration, err error) {
	before, err := l.CPU()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return 0, 0, err
	}
	took = time.Since(began)
	if err := l.Rest(ctx); err != nil {
		return 0, 0, err
	}
	after, err := l.CPU()
	return took, after - before, err
}

const (
	succeeded = `{"status":{"phase":"Succeeded","conditions":[{"type":"Ready","status":"False","reason":"PodCompleted"}],"containerStatuses":[{"name":"main","image":"i","imageID":"i",` +
		`"state":{"terminated":{"exitCode":0,"reason":"Completed"}}}]}}`
	ready   = `{"status":{"phase":"Running","podIP":"10.162.1.1","podIPs":[{"ip":"10.162.1.1"}],"conditions":[{"type":"Ready","status":"True"}]}}`
	unready = `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`
)

func (l *loaded) patchStatus(ctx context.Context, pod, status string) error {
	_, err := l.pods.do(ctx, http.MethodPatch, "/"+pod+"/status", patchType, []byte(status), http.StatusOK)
	return err
}

// kubelet gives each new pod that status, until stop.
func (l *loaded) kubelet(ctx context.Context, n int, status string) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		news   = make(chan string, n) // each pod once
		known  = map[string]bool{}
		wg     sync.WaitGroup
		mu     sync.Mutex
		faults []error
	)
	f := follow(ctx, l.client.CoreV1().RESTClient(), "pods", namespace, fields.Everything(), func(p *corev1.Pod, gone bool) {
		if !gone && !known[p.Name] && len(known) < n {
			known[p.Name] = true
			news <- p.Name
		}
	})
	for range clients {
		wg.Go(func() {
			for name := range news {
				if err := l.patchStatus(ctx, name, status); err != nil && ctx.Err() == nil {
					mu.Lock()
					faults = append(faults, err)
					mu.Unlock()
				}
			}
		})
	}
	return func() error {
		cancel()
		f.stop()
		close(news)
		wg.Wait()
		return errors.Join(faults...)
	}
}

// controllersLimit is how long the controllers may take for one load.
const controllersLimit = 15 * time.Minute

// jobs measures from the first Job's creation until the last is complete.
func jobs(ctx context.Context, r *run, l *loaded) (err error) {
	n := r.count(10_000)
	stop := l.kubelet(ctx, n, succeeded)
	defer func() { err = errors.Join(err, stop()) }()
	complete := map[string]bool{}
	f := follow(ctx, l.client.BatchV1().RESTClient(), "jobs", namespace, fields.Everything(), func(j *batchv1.Job, gone bool) {
		for _, c := range j.Status.Conditions {
			if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue {
				complete[j.Name] = true
			}
		}
	})
	defer f.stop()
	took, cpu, err := l.measured(ctx, func() error {
		if err := l.create(ctx, "/apis/batch/v1", "jobs", n, func(i int) runtime.Object {
			template := placed(nil)
			template.Spec.RestartPolicy = corev1.RestartPolicyNever
			return &batchv1.Job{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "Job"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("job-%05d", i)},
				Spec: batchv1.JobSpec{Template: template}}
		}); err != nil {
			return err
		}
		return f.until(ctx, controllersLimit, func() (string, bool) {
			return fmt.Sprintf("%d of %d Jobs are complete", len(complete), n), len(complete) == n
		})
	})
	if err != nil {
		return fmt.Errorf("jobs: %w", err)
	}
	r.put("10,000 Jobs in one namespace: to Complete", float64(n)/took.Seconds())
	r.put("10,000 Jobs in one namespace: control plane CPU per Job", float64(cpu.Microseconds())/float64(n))
	return nil
}

// servicesOfPods measures until each of so many Services' EndpointSlices shows that its
// pod is not ready any more.
func servicesOfPods(ctx context.Context, r *run, l *loaded) error {
	n := r.count(1000)
	name := func(i int) string { return fmt.Sprintf("app-%04d", i) }
	labels := func(i int) map[string]string { return map[string]string{"app": name(i)} }
	if err := l.create(ctx, "/api/v1", "services", n, func(i int) runtime.Object {
		return &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: name(i)},
			Spec: corev1.ServiceSpec{Selector: labels(i), Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}}}}
	}); err != nil {
		return err
	}
	isReady := map[string]bool{}
	f := follow(ctx, l.client.DiscoveryV1().RESTClient(), "endpointslices", namespace, fields.Everything(), func(s *discoveryv1.EndpointSlice, _ bool) {
		for _, e := range s.Endpoints {
			if e.TargetRef != nil && e.Conditions.Ready != nil {
				isReady[e.TargetRef.Name] = *e.Conditions.Ready
			}
		}
	})
	defer f.stop()
	shown := func(want bool) error {
		return f.until(ctx, controllersLimit, func() (string, bool) {
			as := 0
			for _, is := range isReady {
				if is == want {
					as++
				}
			}
			return fmt.Sprintf("%d of %d endpoints are as they should be", as, n), as == n
		})
	}
	if err := l.create(ctx, "/api/v1", "pods", n, func(i int) runtime.Object {
		return typed(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name(i), Labels: labels(i)}, Spec: placed(nil).Spec})
	}); err != nil {
		return err
	}
	become := func(status string) error {
		_, _, err := each(ctx, clients, n, func(ctx context.Context, i int) error { return l.patchStatus(ctx, name(i), status) })
		return err
	}
	if err := errors.Join(become(ready), shown(true), l.Rest(ctx)); err != nil {
		return fmt.Errorf("services: %w", err)
	}
	took, cpu, err := l.measured(ctx, func() error { return errors.Join(become(unready), shown(false)) })
	if err != nil {
		return fmt.Errorf("services: %w", err)
	}
	r.put("1,000 Services: a pod's readiness to its EndpointSlice", float64(n)/took.Seconds())
	r.put("1,000 Services: control plane CPU per change of a pod", float64(cpu.Microseconds())/float64(n))
	return nil
}

// strayPods measures what a pod costs that each ReplicaSet's selector is asked about.
func strayPods(ctx context.Context, r *run, l *loaded) error {
	n := r.count(1000)
	seen, stop := watchPods(ctx, l.client, fields.Everything(), func(*corev1.Pod) bool { return true })
	defer stop()
	if err := l.create(ctx, "/apis/apps/v1", "replicasets", n, func(i int) runtime.Object {
		labels := map[string]string{"app": fmt.Sprintf("app-%04d", i)}
		return &appsv1.ReplicaSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "ReplicaSet"}, ObjectMeta: metav1.ObjectMeta{Name: labels["app"]},
			Spec: appsv1.ReplicaSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: placed(labels)}}
	}); err != nil {
		return err
	}
	if err := errors.Join(seen.await(ctx, n), l.Rest(ctx)); err != nil {
		return fmt.Errorf("replica sets: %w", err)
	}
	_, cpu, err := l.measured(ctx, func() error {
		if err := l.create(ctx, "/api/v1", "pods", n, func(i int) runtime.Object {
			return typed(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("stray-%04d", i), Labels: map[string]string{"stray": "yes"}}, Spec: placed(nil).Spec})
		}); err != nil {
			return err
		}
		return seen.await(ctx, 2*n)
	})
	if err != nil {
		return fmt.Errorf("replica sets: %w", err)
	}
	r.put("1,000 ReplicaSets: control plane CPU per pod that is none's", float64(cpu.Microseconds())/float64(n))
	return nil
}

// claimedSet measures until the last pod is ready: each waits for the one before.
func claimedSet(ctx context.Context, r *run, l *loaded) (err error) {
	n := int32(r.count(500))
	stop := l.kubelet(ctx, int(n), ready)
	defer func() { err = errors.Join(err, stop()) }()
	var now int32
	f := follow(ctx, l.client.AppsV1().RESTClient(), "statefulsets", namespace, fields.Everything(), func(s *appsv1.StatefulSet, _ bool) { now = s.Status.ReadyReplicas })
	defer f.stop()
	labels, noClass := map[string]string{"app": "set"}, ""
	took, _, err := l.measured(ctx, func() error {
		if err := l.create(ctx, "/apis/apps/v1", "statefulsets", 1, func(int) runtime.Object {
			return &appsv1.StatefulSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "StatefulSet"}, ObjectMeta: metav1.ObjectMeta{Name: "set"},
				Spec: appsv1.StatefulSetSpec{Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: placed(labels),
					VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
						AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &noClass,
						Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}}}}}}}
		}); err != nil {
			return err
		}
		return f.until(ctx, controllersLimit, func() (string, bool) { return fmt.Sprintf("%d of %d pods are ready", now, n), now == n })
	})
	if err != nil {
		return fmt.Errorf("stateful set: %w", err)
	}
	claims, err := l.client.CoreV1().PersistentVolumeClaims(namespace).List(ctx, metav1.ListOptions{})
	if err == nil && len(claims.Items) != int(n) {
		err = fmt.Errorf("stateful set: %d claims and should be %d", len(claims.Items), n)
	}
	r.put("StatefulSet of 500 with claims, in order", float64(n)/took.Seconds())
	return err
}

// crowdedNamespace measures from a namespace's deletion until it is gone. Its pods are on
// no node, so that none waits for a kubelet.
func crowdedNamespace(ctx context.Context, r *run, l *loaded) error {
	n := r.count(10_000)
	if err := l.create(ctx, "/api/v1", "pods", n, func(i int) runtime.Object {
		p := typed(pod(fmt.Sprintf("pod-%05d", i)))
		p.Spec.SchedulerName = "nobody"
		return p
	}); err != nil {
		return err
	}
	if err := l.create(ctx, "/api/v1", "configmaps", n, func(i int) runtime.Object {
		return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%05d", i)},
			Data: map[string]string{"key": "value"}}
	}); err != nil {
		return err
	}
	over := false
	f := follow(ctx, l.client.CoreV1().RESTClient(), "namespaces", metav1.NamespaceAll, fields.OneTermEqualSelector("metadata.name", namespace),
		func(_ *corev1.Namespace, gone bool) { over = gone })
	defer f.stop()
	if err := l.Rest(ctx); err != nil {
		return err
	}
	took, cpu, err := l.measured(ctx, func() error {
		if err := l.client.CoreV1().Namespaces().Delete(ctx, namespace, metav1.DeleteOptions{}); err != nil {
			return err
		}
		return f.until(ctx, controllersLimit, func() (string, bool) { return "the namespace is not gone", over })
	})
	if err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	r.put("namespace with 10,000 pods and 10,000 ConfigMaps: gone", float64(took.Milliseconds()))
	r.put("namespace with 10,000 pods and 10,000 ConfigMaps: control plane CPU", float64(cpu.Milliseconds()))
	return nil
}
