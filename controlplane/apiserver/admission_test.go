package apiserver_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func one() *resource.Quantity { q := resource.MustParse("1Gi"); return &q }

func TestServiceAccountAdmission(t *testing.T) {
	w := newWorld(t)
	p := w.pod("plain", "")
	if p.Spec.ServiceAccountName != "default" || len(p.Spec.Volumes) != 1 || !strings.HasPrefix(p.Spec.Volumes[0].Name, "kube-api-access-") ||
		len(p.Spec.Containers[0].VolumeMounts) != 1 || p.Spec.Containers[0].VolumeMounts[0].MountPath != "/var/run/secrets/kubernetes.io/serviceaccount" {
		t.Errorf("%+v", p.Spec)
	}
	if p = w.pod("without", "", func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = new(false) }); len(p.Spec.Volumes) != 0 {
		t.Error("a token was mounted")
	}
	if p = w.pod("again", "", func(p *corev1.Pod) { // a copy of a pod brings its volume along
		p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-abcde", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}); len(p.Spec.Volumes) != 1 || p.Spec.Containers[0].VolumeMounts[0].Name != "kube-api-access-abcde" {
		t.Errorf("%+v", p.Spec.Volumes)
	}
	_, err := w.admin.CoreV1().Pods("default").Create(w.ctx, func() *corev1.Pod { p := podNamed("x", ""); p.Spec.ServiceAccountName = "nosuch"; return p }(), metav1.CreateOptions{})
	refused(t, err, `pods "x" is forbidden: error looking up service account default/nosuch: serviceaccount "nosuch" not found`)
}

// CVE-2023-2727 and CVE-2024-3177: no way around the list of secrets.
func TestMountableSecrets(t *testing.T) {
	w := newWorld(t)
	for _, value := range []string{"true", "True", "1"} {
		name := "strict-" + strings.ToLower(value)
		_, err := w.admin.CoreV1().ServiceAccounts("default").Create(w.ctx, &corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": value}},
			Secrets:    []corev1.ObjectReference{{Name: "ok"}}, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}}, metav1.CreateOptions{})
		if value == "True" && apierrors.IsAlreadyExists(err) {
			_, err = w.admin.CoreV1().ServiceAccounts("default").Create(w.ctx, &corev1.ServiceAccount{
				ObjectMeta: metav1.ObjectMeta{Name: name + "2", Annotations: map[string]string{"kubernetes.io/enforce-mountable-secrets": value}},
				Secrets:    []corev1.ObjectReference{{Name: "ok"}}}, metav1.CreateOptions{})
			name += "2"
		}
		w.must(err)
		w.must(w.Cache().Sync(w.ctx))
		env := func(secret string) []corev1.EnvVar {
			return []corev1.EnvVar{{Name: "E", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: "k"}}}}
		}
		from := func(secret string) []corev1.EnvFromSource {
			return []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: secret}}}}
		}
		pod := func(podName string, change func(*corev1.Pod)) *corev1.Pod {
			p := podNamed(podName, "")
			p.Spec.ServiceAccountName = name
			change(p)
			return p
		}
		end := `secret.secretName="no" is not allowed because service account ` + name + " does not reference that secret"
		for want, change := range map[string]func(*corev1.Pod){
			"volume with " + end:                           withSecret("no"),
			"container c with envVar E referencing " + end: func(p *corev1.Pod) { p.Spec.Containers[0].Env = env("no") },
			"container c with envFrom referencing " + end:  func(p *corev1.Pod) { p.Spec.Containers[0].EnvFrom = from("no") },
			"init container i with envFrom referencing " + end: func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", EnvFrom: from("no")}}
			},
			"init container i with envVar E referencing " + end: func(p *corev1.Pod) {
				p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i", Env: env("no")}}
			},
			`imagePullSecrets[0].name="no" is not allowed because`: func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "no"}} },
		} {
			_, err := w.admin.CoreV1().Pods("default").Create(w.ctx, pod("x", change), metav1.CreateOptions{})
			refused(t, err, want)
		}
		p, err := w.admin.CoreV1().Pods("default").Create(w.ctx, pod("ok-"+name, withSecret("ok")), metav1.CreateOptions{})
		w.must(err)
		for _, c := range []corev1.EphemeralContainerCommon{{Name: "e", Image: "i", Env: env("no")}, {Name: "e", Image: "i", EnvFrom: from("no")}} {
			q := p.DeepCopy()
			q.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: c}}
			_, err = w.admin.CoreV1().Pods("default").UpdateEphemeralContainers(w.ctx, q.Name, q, metav1.UpdateOptions{})
			refused(t, err, "ephemeral container e with env")
		}
	}
}

func TestPriority(t *testing.T) {
	w := newWorld(t)
	class := func(name string, value int32, def bool) error {
		_, err := w.admin.SchedulingV1().PriorityClasses().Create(w.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, GlobalDefault: def}, metav1.CreateOptions{})
		return err
	}
	if p := w.pod("none", ""); *p.Spec.Priority != 0 || *p.Spec.PreemptionPolicy != corev1.PreemptLowerPriority {
		t.Errorf("%+v", p.Spec)
	}
	w.must(class("high", 7, false))
	if p := w.pod("high", "", func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }); *p.Spec.Priority != 7 {
		t.Errorf("priority %d", *p.Spec.Priority)
	}
	w.must(class("def", 3, true))
	w.must(w.Cache().Sync(w.ctx))
	if p := w.pod("def", ""); *p.Spec.Priority != 3 || p.Spec.PriorityClassName != "def" {
		t.Errorf("%+v", p.Spec)
	}
	refused(t, class("def2", 3, true), "PriorityClass def is already marked as default. Only one default can exist")
	for want, change := range map[string]func(*corev1.Pod){
		`pods "x" is forbidden: no PriorityClass with name nosuch was found`: func(p *corev1.Pod) { p.Spec.PriorityClassName = "nosuch" },
		`the integer value of priority (9) must not be provided in pod spec; priority admission controller computed 7 from the given PriorityClass name`: func(p *corev1.Pod) {
			p.Spec.PriorityClassName, p.Spec.Priority = "high", new(int32(9))
		},
	} {
		p := podNamed("x", "")
		change(p)
		_, err := w.admin.CoreV1().Pods("default").Create(w.ctx, p, metav1.CreateOptions{})
		refused(t, err, want)
	}
}

func TestTolerations(t *testing.T) {
	w := newWorld(t)
	p := w.pod("a", "")
	if len(p.Spec.Tolerations) != 2 || *p.Spec.Tolerations[0].TolerationSeconds != 300 || p.Spec.Tolerations[0].Key != corev1.TaintNodeNotReady {
		t.Errorf("%+v", p.Spec.Tolerations)
	}
	p = w.pod("b", "", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
	if len(p.Spec.Tolerations) != 1 {
		t.Errorf("%+v", p.Spec.Tolerations)
	}
}

func TestRuntimeClass(t *testing.T) {
	w := newWorld(t)
	overhead := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}
	_, err := w.admin.NodeV1().RuntimeClasses().Create(w.ctx, &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "vm"}, Handler: "vm",
		Overhead: &nodev1.Overhead{PodFixed: overhead},
		Scheduling: &nodev1.Scheduling{NodeSelector: map[string]string{"vm": "yes"},
			Tolerations: []corev1.Toleration{{Key: "vm", Operator: corev1.TolerationOpExists}}}}, metav1.CreateOptions{})
	w.must(err)
	p := w.pod("a", "", func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("vm") })
	if !p.Spec.Overhead.Cpu().Equal(overhead[corev1.ResourceCPU]) || p.Spec.NodeSelector["vm"] != "yes" || len(p.Spec.Tolerations) != 3 {
		t.Errorf("%+v", p.Spec)
	}
	for want, change := range map[string]func(*corev1.Pod){
		`pods "x" is forbidden: pod rejected: RuntimeClass "nosuch" not found`:                                      func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("nosuch") },
		`pods "x" is forbidden: pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead`: func(p *corev1.Pod) { p.Spec.Overhead = overhead },
		`conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no`: func(p *corev1.Pod) {
			p.Spec.RuntimeClassName, p.Spec.NodeSelector = new("vm"), map[string]string{"vm": "no"}
		},
		`pods "x" is forbidden: pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead`: func(p *corev1.Pod) {
			p.Spec.RuntimeClassName, p.Spec.Overhead = new("vm"), corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		},
	} {
		p := podNamed("x", "")
		change(p)
		_, err := w.admin.CoreV1().Pods("default").Create(w.ctx, p, metav1.CreateOptions{})
		refused(t, err, want)
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	w := newWorld(t)
	for _, ns := range []string{"default", "kube-system", "kube-public"} {
		refused(t, w.admin.CoreV1().Namespaces().Delete(w.ctx, ns, metav1.DeleteOptions{}), `namespaces "`+ns+`" is forbidden: this namespace may not be deleted`)
	}
	cm := func(ns, name string) error {
		_, err := w.admin.CoreV1().ConfigMaps(ns).Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		return err
	}
	err := cm("nosuch", "x")
	if !apierrors.IsNotFound(err) {
		t.Error(err)
	}
	refused(t, err, `namespaces "nosuch" not found`)
	w.namespace("ending")
	w.must(cm("ending", "a"))
	w.must(w.admin.CoreV1().Namespaces().Delete(w.ctx, "ending", metav1.DeleteOptions{}))
	w.must(w.Cache().Sync(w.ctx))
	err = cm("ending", "x")
	refused(t, err, `configmaps "x" is forbidden: unable to create new content in namespace ending because it is being terminated`)
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Error("the cause is missing")
	}
	w.must(w.admin.CoreV1().ConfigMaps("ending").Delete(w.ctx, "a", metav1.DeleteOptions{}))
}

// The default account of a new namespace may come a moment after its first pod.
func TestDefaultAccountIsWaitedFor(t *testing.T) {
	w := newWorld(t)
	_, err := w.admin.CoreV1().Namespaces().Create(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}, metav1.CreateOptions{})
	w.must(err)
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	made := make(chan error, 1)
	go func() {
		_, err := w.admin.CoreV1().ServiceAccounts("new").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		made <- err
	}()
	_, err = w.admin.CoreV1().Pods("new").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}, metav1.CreateOptions{})
	w.must(err)
	w.must(<-made)
}
