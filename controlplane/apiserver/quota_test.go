package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"knarr/controlplane/apiserver"
	"knarr/controlplane/apiserver/storage"
	"knarr/internal/apitest"
)

func amounts(pairs ...string) corev1.ResourceList {
	l := corev1.ResourceList{}
	for _, p := range pairs {
		name, amount, _ := strings.Cut(p, "=")
		l[corev1.ResourceName(name)] = resource.MustParse(amount)
	}
	return l
}

// quota makes one whose use the controller has found to be used.
func (w *world) quota(name string, spec corev1.ResourceQuotaSpec, used corev1.ResourceList) {
	w.t.Helper()
	q, err := w.admin.CoreV1().ResourceQuotas("default").Create(w.ctx, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	w.must(err)
	q.Status = corev1.ResourceQuotaStatus{Hard: spec.Hard, Used: used}
	_, err = w.admin.CoreV1().ResourceQuotas("default").UpdateStatus(w.ctx, q, metav1.UpdateOptions{})
	w.must(err)
}

func (w *world) used(name string) string {
	w.t.Helper()
	q, err := w.admin.CoreV1().ResourceQuotas("default").Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	var parts []string
	for _, n := range []corev1.ResourceName{"pods", "requests.cpu", "limits.memory", "services.nodeports", "count/configmaps"} {
		if u, ok := q.Status.Used[n]; ok {
			parts = append(parts, string(n)+"="+u.String())
		}
	}
	return strings.Join(parts, ",")
}

func (w *world) tryPod(name string, options metav1.CreateOptions, change func(*corev1.Pod)) error {
	p := podNamed(name, "")
	change(p)
	_, err := w.admin.CoreV1().Pods("default").Create(w.ctx, p, options)
	return err
}

func asks(requests, limits corev1.ResourceList) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: requests, Limits: limits}
	}
}

func TestResourceQuota(t *testing.T) {
	w := newWorld(t)
	w.quota("q", corev1.ResourceQuotaSpec{Hard: amounts("pods=3", "requests.cpu=2", "limits.memory=1Gi")}, amounts("pods=0", "requests.cpu=0", "limits.memory=0"))
	w.quota("timed", corev1.ResourceQuotaSpec{Hard: amounts("pods=1"), Scopes: []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}}, amounts("pods=0"))

	name := podNamed("x", "").Spec.Containers[0].Name
	refused(t, w.tryPod("silent", metav1.CreateOptions{}, func(*corev1.Pod) {}),
		`pods "silent" is forbidden: failed quota: q: must specify limits.memory for: `+name+`; requests.cpu for: `+name)
	w.must(w.tryPod("one", metav1.CreateOptions{}, asks(amounts("cpu=1500m"), amounts("memory=256Mi"))))
	if got := w.used("q"); got != "pods=1,requests.cpu=1500m,limits.memory=256Mi" {
		t.Error(got)
	}
	refused(t, w.tryPod("two", metav1.CreateOptions{}, asks(amounts("cpu=1"), amounts("memory=1Gi"))),
		`pods "two" is forbidden: exceeded quota: q, requested: limits.memory=1Gi,requests.cpu=1, used: limits.memory=256Mi,requests.cpu=1500m, limited: limits.memory=1Gi,requests.cpu=2`)
	w.must(w.tryPod("dry", metav1.CreateOptions{DryRun: []string{"All"}}, asks(amounts("cpu=100m"), amounts("memory=1Mi"))))
	if got := w.used("q"); got != "pods=1,requests.cpu=1500m,limits.memory=256Mi" {
		t.Error("a dry run was charged: ", got)
	}

	timed := func(p *corev1.Pod) {
		asks(amounts("cpu=100m"), amounts("memory=1Mi"))(p)
		p.Spec.ActiveDeadlineSeconds = new(int64(60))
	}
	w.must(w.tryPod("timed", metav1.CreateOptions{}, timed))
	refused(t, w.tryPod("timed2", metav1.CreateOptions{}, timed),
		`pods "timed2" is forbidden: exceeded quota: timed, requested: pods=1, used: pods=1, limited: pods=1`)
	// A pod gets into the scope by an update.
	_, err := w.admin.CoreV1().Pods("default").Patch(w.ctx, "one", types.MergePatchType, []byte(`{"spec":{"activeDeadlineSeconds":5}}`), metav1.PatchOptions{})
	refused(t, err, `pods "one" is forbidden: exceeded quota: timed, requested: pods=1, used: pods=1, limited: pods=1`)
	if got := w.used("q") + " " + w.used("timed"); got != "pods=2,requests.cpu=1600m,limits.memory=257Mi pods=1" {
		t.Error(got)
	}

	_, err = w.admin.CoreV1().Pods("default").Patch(w.ctx, "one", types.MergePatchType, []byte(
		`{"spec":{"containers":[{"name":"`+name+`","image":"i","resources":{"requests":{"cpu":"2"},"limits":{"memory":"256Mi"}}}]}}`), metav1.PatchOptions{}, "resize")
	refused(t, err, `pods "one" is forbidden: exceeded quota: q, requested: requests.cpu=500m, used: requests.cpu=1600m, limited: requests.cpu=2`)
}

func TestQuotaOfOtherObjects(t *testing.T) {
	w := newWorld(t)
	w.quota("q", corev1.ResourceQuotaSpec{Hard: amounts("services.nodeports=2", "count/configmaps=1", "secrets=1")}, amounts("services.nodeports=0", "count/configmaps=0"))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Name: "a", Port: 1}, {Name: "b", Port: 2}}}}
	service, err := w.admin.CoreV1().Services("default").Create(w.ctx, service, metav1.CreateOptions{})
	w.must(err)
	service.Spec.Type = corev1.ServiceTypeNodePort
	service, err = w.admin.CoreV1().Services("default").Update(w.ctx, service, metav1.UpdateOptions{})
	w.must(err)
	service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: "c", Port: 3})
	_, err = w.admin.CoreV1().Services("default").Update(w.ctx, service, metav1.UpdateOptions{})
	refused(t, err, `services "s" is forbidden: exceeded quota: q, requested: services.nodeports=1, used: services.nodeports=2, limited: services.nodeports=2`)

	maps := w.admin.CoreV1().ConfigMaps("default")
	_, err = maps.Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "m-"}}, metav1.CreateOptions{})
	w.must(err)
	_, err = maps.Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{})
	refused(t, err, `configmaps "m" is forbidden: exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=1, limited: count/configmaps=1`)
	if got := w.used("q"); got != "services.nodeports=2,count/configmaps=1" {
		t.Error(got)
	}
	_, err = w.admin.CoreV1().Secrets("default").Create(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}, metav1.CreateOptions{})
	refused(t, err, `secrets "s" is forbidden: status unknown for quota: q, resources: secrets`)
}

// However many create at once, exactly as many succeed as there is room for.
func TestQuotaIsExact(t *testing.T) {
	w := newWorld(t)
	const room = 10
	w.quota("q", corev1.ResourceQuotaSpec{Hard: amounts(fmt.Sprintf("count/configmaps=%d", room))}, amounts("count/configmaps=0"))
	w.quota("wide", corev1.ResourceQuotaSpec{Hard: amounts("count/configmaps=100")}, amounts("count/configmaps=0"))
	var wg sync.WaitGroup
	var made atomic.Int32
	for i := range 3 * room {
		wg.Go(func() {
			_, err := w.admin.CoreV1().ConfigMaps("default").Create(w.ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("m%d", i)}}, metav1.CreateOptions{})
			switch {
			case err == nil:
				made.Add(1)
			case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: q,"):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := fmt.Sprint(made.Load()) + " " + w.used("q") + " " + w.used("wide"); got != fmt.Sprintf("%d count/configmaps=%[1]d count/configmaps=%[1]d", room) {
		t.Error(got)
	}
}

func TestLimitRange(t *testing.T) {
	w := newWorld(t)
	_, err := w.admin.CoreV1().LimitRanges("default").Create(w.ctx, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Min: amounts("cpu=50m"), Max: amounts("cpu=500m"), Default: amounts("cpu=500m", "memory=500Mi"),
			DefaultRequest: amounts("cpu=100m", "memory=200Mi"), MaxLimitRequestRatio: amounts("cpu=10")},
		{Type: corev1.LimitTypePod, Max: amounts("memory=1Gi")},
		{Type: corev1.LimitTypePersistentVolumeClaim, Min: amounts("storage=1Gi"), Max: amounts("storage=2Gi")},
	}}}, metav1.CreateOptions{})
	w.must(err)
	p := w.pod("plain", "")
	name := p.Spec.Containers[0].Name
	r := p.Spec.Containers[0].Resources
	if r.Requests.Cpu().String() != "100m" || r.Requests.Memory().String() != "200Mi" || r.Limits.Cpu().String() != "500m" || r.Limits.Memory().String() != "500Mi" {
		t.Errorf("%+v", r)
	}
	if got, want := p.Annotations["kubernetes.io/limit-ranger"], "LimitRanger plugin set: cpu, memory request for container "+name+"; cpu, memory limit for container "+name; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	refused(t, w.tryPod("big", metav1.CreateOptions{}, asks(amounts("cpu=600m"), amounts("cpu=1"))),
		`pods "big" is forbidden: maximum cpu usage per Container is 500m, but limit is 1`)
	refused(t, w.tryPod("small", metav1.CreateOptions{}, asks(amounts("cpu=10m"), nil)),
		`pods "small" is forbidden: [minimum cpu usage per Container is 50m, but request is 10m, cpu max limit to request ratio per Container is 10, but provided ratio is 50.000000]`)
	refused(t, w.tryPod("fat", metav1.CreateOptions{}, asks(nil, amounts("memory=2Gi"))),
		`pods "fat" is forbidden: maximum memory usage per Pod is 1Gi, but limit is 2Gi`)
	claim := func(size string) error {
		_, err := w.admin.CoreV1().PersistentVolumeClaims("default").Create(w.ctx, &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: amounts("storage=" + size)}}}, metav1.CreateOptions{})
		return err
	}
	refused(t, claim("3Gi"), `persistentvolumeclaims "c" is forbidden: maximum storage usage per PersistentVolumeClaim is 2Gi, but request is 3Gi`)
	refused(t, claim("1Mi"), `persistentvolumeclaims "c" is forbidden: minimum storage usage per PersistentVolumeClaim is 1Gi, but request is 1Mi`)
	w.must(claim("1Gi"))
}

func TestAdmissionSelection(t *testing.T) {
	s, _ := apitest.New(t, func(c *apiserver.Config) {
		c.EnableAdmission, c.DisableAdmission = []string{"AlwaysPullImages", "DenyServiceExternalIPs"}, []string{"ServiceAccount", "LimitRanger", "PodNodeSelector"}
	})
	w := &world{Server: s, t: t, ctx: t.Context(), admin: s.Client(t)}
	p, err := w.admin.CoreV1().Pods("default").Create(w.ctx, podNamed("p", ""), metav1.CreateOptions{})
	w.must(err)
	if p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways || p.Spec.ServiceAccountName != "" {
		t.Errorf("%+v", p.Spec)
	}
	_, err = w.admin.CoreV1().Services("default").Create(w.ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: corev1.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}, Ports: []corev1.ServicePort{{Port: 1}}}}, metav1.CreateOptions{})
	refused(t, err, `services "s" is forbidden: Use of external IPs is denied by admission control`)

	store := storage.NewMemory()
	defer store.Close()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	for _, tt := range []struct {
		on, off []string
		want    string
	}{
		{[]string{"Nosuch"}, nil, `enable-admission-plugins plugin "Nosuch" is unknown; there are AlwaysAdmit, AlwaysDeny, AlwaysPullImages, `},
		{nil, []string{""}, `disable-admission-plugins plugin "" is unknown; there are `},
		{[]string{"Priority"}, []string{"Priority"}, `Priority in enable-admission-plugins and disable-admission-plugins overlapped`},
	} {
		_, err := apiserver.New(apiserver.Config{Store: store, EnableAdmission: tt.on, DisableAdmission: tt.off, ServiceAccountKey: key})
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
			t.Errorf("%v, want %s", err, tt.want)
		}
	}
}
