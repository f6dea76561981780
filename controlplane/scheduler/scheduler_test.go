package scheduler_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"knarr/controlplane/scheduler"
	"knarr/internal/apitest"
)

// A world is an API server and a scheduler in fake time.
type world struct {
	*testing.T
	ctx    context.Context
	client *kubernetes.Clientset
}

// in runs do in a world; no wait in it lasts for ever.
func in(t *testing.T, do func(w *world), edit ...func(*scheduler.Config)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s, stop := apitest.New(t)
		defer stop()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Hour)
		defer cancel()
		cfg := scheduler.Config{Kube: s.Config(&user.DefaultInfo{
			Name: "system:kube-scheduler", Groups: []string{user.AllAuthenticated},
		})}
		for _, e := range edit {
			e(&cfg)
		}
		sched, err := scheduler.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- sched.Run(ctx) }()
		w := &world{t, ctx, s.Client(t)}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := w.client.CoreV1().ServiceAccounts("default").Create(ctx, account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		do(w)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (w *world) node(name, cpu string, edit ...func(*corev1.Node)) {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, e := range edit {
		e(n)
	}
	n, err := w.client.CoreV1().Nodes().Create(w.ctx, n, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if len(edit) == 0 { // the taint of a node that is not ready yet, if any
		n.Spec.Taints = nil
		if n, err = w.client.CoreV1().Nodes().Update(w.ctx, n, metav1.UpdateOptions{}); err != nil {
			w.Fatal(err)
		}
	}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	n.Status.Capacity = n.Status.Allocatable
	if _, err := w.client.CoreV1().Nodes().UpdateStatus(w.ctx, n, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
	synctest.Wait() // nodes and pods come by different watches: a pod may be faster
}

func (w *world) pod(name, cpu string, edit ...func(*corev1.Pod)) *corev1.Pod {
	w.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
		}}}},
	}
	for _, e := range edit {
		e(p)
	}
	p, err := w.client.CoreV1().Pods("default").Create(w.ctx, p, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return p
}

func (w *world) get(name string) *corev1.Pod {
	w.Helper()
	p, err := w.client.CoreV1().Pods("default").Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return p
}

// where lets some time pass and says where the pod is.
func (w *world) where(name string, after time.Duration) string {
	w.Helper()
	time.Sleep(after)
	synctest.Wait()
	return w.get(name).Spec.NodeName
}

func (w *world) events() (list []string) {
	w.Helper()
	all, err := w.client.CoreV1().Events("default").List(w.ctx, metav1.ListOptions{})
	if err != nil {
		w.Fatal(err)
	}
	for _, e := range all.Items {
		list = append(list, fmt.Sprintf("%s %s %s %s %s", e.Type, e.Reason, e.ReportingController, e.InvolvedObject.Name, e.Message))
	}
	return list
}

func TestBinds(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.pod("a", "1")
		if got := w.where("a", time.Second); got != "one" {
			t.Fatalf("the pod is on %q; %+v", got, w.get("a").Status.Conditions)
		}
		want := "Normal Scheduled default-scheduler a Successfully assigned default/a to one"
		if got := strings.Join(w.events(), "\n"); got != want {
			t.Errorf("events:\n%s\nwant:\n%s", got, want)
		}
	})
}

func TestWaitsForRoom(t *testing.T) {
	in(t, func(w *world) {
		w.pod("early", "1")
		if got := w.where("early", time.Second); got != "" {
			t.Fatal("placed on", got)
		}
		// Autoscalers look for this reason.
		if c := w.get("early").Status.Conditions; len(c) != 1 || c[0].Reason != corev1.PodReasonUnschedulable || c[0].Message != "no nodes available to schedule pods" {
			t.Errorf("conditions without a node: %+v", c)
		}
		w.node("one", "2")
		if got := w.where("early", 2*time.Second); got != "one" {
			t.Fatalf("on %q; %+v", got, w.get("early").Status.Conditions)
		}
		w.pod("big", "1500m")
		if got := w.where("big", time.Second); got != "" {
			t.Fatal("placed on", got)
		}
		c := w.get("big").Status.Conditions
		const want = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
		if len(c) != 1 || c[0].Type != corev1.PodScheduled || c[0].Status != corev1.ConditionFalse || c[0].Reason != "Unschedulable" || c[0].Message != want {
			t.Errorf("conditions: %+v", c)
		}
		if err := w.client.CoreV1().Pods("default").Delete(w.ctx, "early", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		if got := w.where("big", 2*time.Second); got != "one" {
			t.Errorf("after room was made on %q", got)
		}
	})
}

func TestPreempts(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.node("two", "2")
		important := func(v int32) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.Spec.PriorityClassName = fmt.Sprintf("p%d", v) }
		}
		for _, v := range []int32{1, 5, 9} {
			c := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", v)}, Value: v}
			if _, err := w.client.SchedulingV1().PriorityClasses().Create(w.ctx, c, metav1.CreateOptions{}); err != nil {
				w.Fatal(err)
			}
		}
		time.Sleep(time.Second)
		w.pod("low", "1500m", important(1))
		w.pod("middle", "1500m", important(5))
		at := w.where("low", time.Second)
		if at == "" || w.where("middle", 0) == "" {
			t.Fatal("not placed")
		}
		w.pod("high", "1500m", important(9))
		time.Sleep(time.Second)
		p, low := w.get("high"), w.get("low")
		if p.Status.NominatedNodeName != at || p.Spec.NodeName != "" {
			t.Errorf("nominated to %q, on %q; want %q", p.Status.NominatedNodeName, p.Spec.NodeName, at)
		}
		if low.DeletionTimestamp == nil || w.get("middle").DeletionTimestamp != nil {
			t.Error("not the least important pod is going")
		}
		var got string
		for _, c := range low.Status.Conditions {
			if c.Type == corev1.DisruptionTarget {
				got = fmt.Sprint(c.Status, " ", c.Reason, " ", c.Message)
			}
		}
		if want := "True PreemptionByScheduler default-scheduler: preempting to accommodate a higher priority pod"; got != want {
			t.Errorf("condition %q, want %q", got, want)
		}
		// A pod of middling importance does not take the room that was made.
		w.pod("thief", "1500m", important(5))
		time.Sleep(time.Second)
		if err := w.client.CoreV1().Pods("default").Delete(w.ctx, "low", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
			t.Fatal(err)
		}
		if got := w.where("high", 2*time.Second); got != at {
			t.Errorf("the preemptor is on %q, want %q", got, at)
		}
		if got := w.where("thief", 0); got != "" {
			t.Errorf("the other is on %q", got)
		}
		want := fmt.Sprintf("Normal Preempted default-scheduler low Preempted by pod %s on node %s", p.UID, at)
		if all := w.events(); !slices.Contains(all, want) {
			t.Errorf("no event %q in\n%s", want, strings.Join(all, "\n"))
		}
	})
}

func TestGates(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.pod("a", "1", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/x"}} })
		if got := w.where("a", time.Minute); got != "" {
			t.Fatal("a gated pod is on", got)
		}
		p := w.get("a")
		p.Spec.SchedulingGates = nil
		if _, err := w.client.CoreV1().Pods("default").Update(w.ctx, p, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := w.where("a", time.Second); got != "one" {
			t.Errorf("on %q", got)
		}
	})
}

func TestOtherSchedulers(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.pod("a", "1", func(p *corev1.Pod) { p.Spec.SchedulerName = "another" })
		if got := w.where("a", time.Minute); got != "" {
			t.Fatal("another scheduler's pod is on", got)
		}
	})
}

func TestSpreadsAndKeepsApart(t *testing.T) {
	in(t, func(w *world) {
		for _, n := range []string{"one", "two", "three"} {
			w.node(n, "8")
		}
		like := map[string]string{"app": "web"}
		apart := func(p *corev1.Pod) {
			p.Labels = like
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: like},
				}},
			}}
		}
		seen := map[string]string{}
		for i := range 4 {
			w.pod(fmt.Sprint("web-", i), "10m", apart)
		}
		time.Sleep(time.Second)
		for i := range 4 {
			name := fmt.Sprint("web-", i)
			if at := w.where(name, 0); at != "" && seen[at] != "" {
				t.Errorf("%s and %s are both on %s", name, seen[at], at)
			} else {
				seen[at] = name
			}
		}
		if seen[""] == "" || len(seen) != 4 {
			t.Fatalf("placed %v", seen)
		}
		const want = "0/3 nodes are available: 3 node(s) didn't match pod anti-affinity rules. no new claims to deallocate, preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
		if c := w.get(seen[""]).Status.Conditions; len(c) != 1 || c[0].Message != want {
			t.Errorf("conditions %+v", c)
		}
		// A node with the label comes: the last one can go there.
		w.node("four", "8")
		if got := w.where(seen[""], 15*time.Second); got != "four" {
			t.Errorf("the last is on %q", got)
		}
	})
}

func TestVolumes(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.node("two", "2")
		late := storagev1.VolumeBindingWaitForFirstConsumer
		for _, provisioner := range []string{"example.com/maker", "kubernetes.io/no-provisioner"} {
			class := &storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{Name: strings.Split(provisioner, "/")[1]}, Provisioner: provisioner, VolumeBindingMode: &late,
			}
			if _, err := w.client.StorageV1().StorageClasses().Create(w.ctx, class, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		claim := func(name, class string) {
			t.Helper()
			c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
				StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources: corev1.VolumeResourceRequirements{Requests: size},
			}}
			if _, err := w.client.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, c, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		with := func(claim string) func(*corev1.Pod) {
			return func(p *corev1.Pod) {
				p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
				}}}
			}
		}
		// complete does what the controller of volumes does.
		complete := func(claim, volume string) {
			t.Helper()
			claims := w.client.CoreV1().PersistentVolumeClaims("default")
			c, err := claims.Get(w.ctx, claim, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			metav1.SetMetaDataAnnotation(&c.ObjectMeta, "pv.kubernetes.io/bind-completed", "yes")
			c.Spec.VolumeName = volume
			if _, err := claims.Update(w.ctx, c, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}

		w.pod("a", "1", with("made"))
		if got := w.where("a", time.Second); got != "" {
			t.Fatal("without its claim on", got)
		}
		if c := w.get("a").Status.Conditions; len(c) != 1 || !strings.HasPrefix(c[0].Message, `0/2 nodes are available: persistentvolumeclaim "made" not found.`) {
			t.Errorf("conditions %+v", c)
		}
		claim("made", "maker")
		if got := w.where("a", 2*time.Second); got != "" {
			t.Fatal("before its volume on", got)
		}
		c, err := w.client.CoreV1().PersistentVolumeClaims("default").Get(w.ctx, "made", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node := c.Annotations["volume.kubernetes.io/selected-node"]
		if node == "" {
			t.Fatalf("no node selected: %v; %+v", c.Annotations, w.get("a").Status.Conditions)
		}
		complete("made", "some-volume")
		if got := w.where("a", time.Second); got != node {
			t.Errorf("on %q, want %q", got, node)
		}

		pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Spec: corev1.PersistentVolumeSpec{
			StorageClassName: "no-provisioner", AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Capacity: size,
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/x"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"two"}}},
			}}}},
		}}
		if pv, err = w.client.CoreV1().PersistentVolumes().Create(w.ctx, pv, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pv.Status.Phase = corev1.VolumeAvailable
		if _, err := w.client.CoreV1().PersistentVolumes().UpdateStatus(w.ctx, pv, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		claim("found", "no-provisioner")
		w.pod("b", "1", with("found"))
		time.Sleep(time.Second)
		if pv, err = w.client.CoreV1().PersistentVolumes().Get(w.ctx, "local", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.Name != "found" {
			t.Fatalf("the volume is given to %v; %+v", pv.Spec.ClaimRef, w.get("b").Status.Conditions)
		}
		complete("found", "local")
		if got := w.where("b", time.Second); got != "two" {
			t.Errorf("on %q", got)
		}
	})
}

func TestLeads(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.pod("a", "1")
		if got := w.where("a", 10*time.Second); got != "one" {
			t.Errorf("on %q", got)
		}
		lease, err := w.client.CoordinationV1().Leases("kube-system").Get(w.ctx, "kube-scheduler", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != "me" {
			t.Errorf("the lease is held by %v", lease.Spec.HolderIdentity)
		}
	}, func(c *scheduler.Config) { c.LeaderElect, c.Identity = true, "me" })
}

func TestRespectsBudgets(t *testing.T) {
	in(t, func(w *world) {
		w.node("one", "2")
		w.node("two", "2")
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 9}
		if _, err := w.client.SchedulingV1().PriorityClasses().Create(w.ctx, class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "guarded"}},
		}}
		if _, err := w.client.PolicyV1().PodDisruptionBudgets("default").Create(w.ctx, budget, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pod("guarded", "1500m")
		w.pod("free", "1500m")
		time.Sleep(time.Second)
		w.pod("preemptor", "1500m", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
		time.Sleep(time.Second)
		if w.get("guarded").DeletionTimestamp != nil || w.get("free").DeletionTimestamp == nil {
			t.Error("the pod under a budget was preempted")
		}
	})
}
