package kubelet

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestExpand(t *testing.T) {
	vars := map[string]string{"A": "x", "EMPTY": ""}
	for in, want := range map[string]string{
		"$(A)": "x", "a$(A)b": "axb", "$$(A)": "$(A)", "$(B)": "$(B)", "$A": "$A", "$": "$", "$(A": "$(A", "$$$(A)": "$x", "[$(EMPTY)]": "[]", "$(A)$(A)": "xx",
	} {
		if got := expand(in, func(n string) (string, bool) { v, ok := vars[n]; return v, ok }); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func service(ns, name, ip string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: corev1.ServiceSpec{ClusterIP: ip, Ports: ports}}
}

func TestServiceEnv(t *testing.T) {
	all := []*corev1.Service{
		service("default", "kubernetes", "10.0.0.1", corev1.ServicePort{Name: "https", Port: 443}),
		service("ns", "my-db", "10.0.0.2", corev1.ServicePort{Port: 5432, Protocol: corev1.ProtocolTCP}),
		service("ns", "headless", "None", corev1.ServicePort{Port: 1}),
		service("other", "far", "10.0.0.3", corev1.ServicePort{Port: 1}),
	}
	got := map[string]string{}
	for _, p := range serviceEnv(all, "ns", true) {
		got[p.name] = p.value
	}
	for k, v := range map[string]string{
		"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443", "KUBERNETES_SERVICE_PORT_HTTPS": "443",
		"KUBERNETES_PORT": "tcp://10.0.0.1:443", "MY_DB_SERVICE_HOST": "10.0.0.2", "MY_DB_PORT_5432_TCP_ADDR": "10.0.0.2", "MY_DB_PORT_5432_TCP_PROTO": "tcp",
	} {
		if got[k] != v {
			t.Errorf("%s=%q, want %q", k, got[k], v)
		}
	}
	for k := range got {
		if strings.HasPrefix(k, "FAR") || strings.HasPrefix(k, "HEADLESS") {
			t.Errorf("%s is set", k)
		}
	}
	for _, p := range serviceEnv(all, "ns", false) {
		if strings.HasPrefix(p.name, "MY_DB") {
			t.Errorf("%s is set without links", p.name)
		}
	}
}

func TestEnvironmentOrder(t *testing.T) {
	p := pod("p", "c")
	c := &p.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "B", Value: "$(A)1"}, {Name: "A", Value: "a"}, {Name: "C", Value: "$(A)$(S)"}, {Name: "S", Value: "mine"}}
	got, err := environment(p, c, []pair{{"S", "svc"}, {"T", "t"}}, nil, &downward{pod: p})
	if err != nil {
		t.Fatal(err)
	}
	if want := []pair{{"B", "$(A)1"}, {"A", "a"}, {"C", "asvc"}, {"S", "mine"}, {"T", "t"}}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestDownward(t *testing.T) {
	p := pod("p", "c")
	p.Labels = map[string]string{"b": "2", "a": `"1"`}
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m")}
	d := &downward{pod: p, ips: []string{"1.1.1.1", "::1"}, allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
	for path, want := range map[string]string{
		"metadata.name": "p", "metadata.labels['b']": "2", "metadata.labels": "a=\"\\\"1\\\"\"\nb=\"2\"", "status.podIPs": "1.1.1.1,::1",
	} {
		if got, err := d.Field(path); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", path, got, err, want)
		}
	}
	for res, want := range map[string]string{"limits.cpu": "2", "limits.memory": "1073741824", "requests.cpu": "0"} {
		if got, err := d.Resource("c", &corev1.ResourceFieldSelector{Resource: res}); err != nil || got != want {
			t.Errorf("%s: %q %v, want %q", res, got, err, want)
		}
	}
	if got, _ := d.Resource("c", &corev1.ResourceFieldSelector{Resource: "limits.cpu", Divisor: resource.MustParse("1m")}); got != "1500" {
		t.Errorf("limits.cpu in millicores: %s", got)
	}
}

func TestPodDNS(t *testing.T) {
	k := &Kubelet{cfg: Config{ClusterDNS: []net.IP{net.IPv4(10, 43, 0, 10)}, ClusterDomain: "cluster.local"}}
	p := pod("p", "c")
	p.Spec.DNSPolicy = corev1.DNSClusterFirst
	two := "2"
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"9.9.9.9"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
	d, err := k.podDNS(p)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(d.Servers, []string{"10.43.0.10", "9.9.9.9"}) || !slices.Equal(d.Searches, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local"}) ||
		!slices.Equal(d.Options, []string{"ndots:2", "edns0"}) {
		t.Errorf("%+v", d)
	}
	p.Spec.HostNetwork, p.Spec.DNSConfig = true, nil
	if d, _ := k.podDNS(p); len(d.Servers) != 0 {
		t.Errorf("a pod on the host network got %v", d.Servers)
	}
}

func TestParseResolvConf(t *testing.T) {
	d := parseResolvConf("# c\nnameserver 1.1.1.1\nsearch a.b. c # x\noptions ndots:1\n")
	if !slices.Equal(d.Servers, []string{"1.1.1.1"}) || !slices.Equal(d.Searches, []string{"a.b", "c"}) || !slices.Equal(d.Options, []string{"ndots:1"}) {
		t.Errorf("%+v", d)
	}
}

func TestHosts(t *testing.T) {
	got := hostsText([]string{"10.0.0.9"}, "h", "sub.ns.svc.x") + aliasText([]corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}})
	if !strings.HasSuffix(got, "10.0.0.9\th.sub.ns.svc.x\th\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n") {
		t.Errorf("%q", got)
	}
}

func limits(cpuReq, memReq, cpu, mem string) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	for _, x := range []struct {
		l corev1.ResourceList
		n corev1.ResourceName
		v string
	}{{r.Requests, "cpu", cpuReq}, {r.Requests, "memory", memReq}, {r.Limits, "cpu", cpu}, {r.Limits, "memory", mem}} {
		if x.v != "" {
			x.l[x.n] = resource.MustParse(x.v)
		}
	}
	return r
}

func TestQOSAndScore(t *testing.T) {
	for _, c := range []struct {
		r     corev1.ResourceRequirements
		want  corev1.PodQOSClass
		score int64
	}{
		{limits("", "", "", ""), corev1.PodQOSBestEffort, 1000},
		{limits("1", "1Gi", "1", "1Gi"), corev1.PodQOSGuaranteed, -997},
		{limits("1", "1Gi", "", ""), corev1.PodQOSBurstable, 750},
		{limits("1", "", "2", ""), corev1.PodQOSBurstable, 999},
	} {
		p := pod("p", "c")
		p.Spec.Containers[0].Resources = c.r
		if got := computeQOS(p); got != c.want {
			t.Errorf("%v: %s, want %s", c.r, got, c.want)
		}
		if got := oomScore(p, &p.Spec.Containers[0], 4<<30); got != c.score {
			t.Errorf("%v: score %d, want %d", c.r, got, c.score)
		}
	}
}

func TestShares(t *testing.T) {
	for milli, want := range map[int64]int64{0: 2, 1: 2, 100: 102, 1000: 1024, 1 << 30: 262144} {
		if got := sharesOf(milli); got != want {
			t.Errorf("%dm: %d shares, want %d", milli, got, want)
		}
	}
	if got := quotaOf(1); got != 1000 {
		t.Errorf("quota of 1m: %d", got)
	}
}

func TestHugepageSize(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{"hugepages-2Mi": "2MB", "hugepages-1Gi": "1GB", "cpu": ""} {
		if got, _ := hugepageSize(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestAdmission(t *testing.T) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"disk": "ssd"}}, Status: corev1.NodeStatus{
		Allocatable: corev1.ResourceList{"cpu": resource.MustParse("2"), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("3")}}}
	with := func(f func(*corev1.Pod)) *corev1.Pod { p := pod("p", "c"); f(p); return p }
	port := func(p *corev1.Pod) { p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: 80}} }
	for _, c := range []struct {
		name   string
		pod    *corev1.Pod
		others []*corev1.Pod
		p      pressure
		reason string
		text   string
	}{
		{name: "fits", pod: pod("p", "c")},
		{name: "cpu", pod: with(func(p *corev1.Pod) { p.Spec.Containers[0].Resources = limits("3", "", "", "") }), reason: "OutOfcpu",
			text: "Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		{name: "pods", pod: pod("p", "c"), others: []*corev1.Pod{pod("a", "c"), pod("b", "c"), pod("d", "c")}, reason: "OutOfpods"},
		{name: "selector", pod: with(func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }), reason: "NodeAffinity",
			text: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{name: "port", pod: with(port), others: []*corev1.Pod{with(port)}, reason: "NodePorts"},
		{name: "sysctl", pod: with(func(p *corev1.Pod) {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "1"}}}
		}), reason: "SysctlForbidden", text: `forbidden sysctl: "kernel.msgmax" not allowlisted`},
		{name: "disk pressure", pod: pod("p", "c"), p: pressure{disk: true}, reason: "Evicted", text: "The node had condition: [DiskPressure]. "},
		{name: "memory pressure, burstable", pod: with(func(p *corev1.Pod) { p.Spec.Containers[0].Resources = limits("1", "", "", "") }), p: pressure{memory: true}},
		{name: "taint", pod: pod("p", "c")},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := admission(c.pod, c.others, n, &c.p, nil)
			if r == nil {
				r = &rejection{}
			}
			if r.reason != c.reason || c.text != "" && r.message != c.text {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestRank(t *testing.T) {
	low, high := pod("low", "c"), pod("high", "c")
	low.Spec.Priority, high.Spec.Priority = new(int32(0)), new(int32(10))
	all := []candidate{{pod: pod("within", "c"), usage: 1, req: 2}, {pod: high, usage: 9, req: 1}, {pod: low, usage: 3, req: 1}}
	rank(all)
	if all[0].pod.Name != "low" || all[1].pod.Name != "high" || all[2].pod.Name != "within" {
		t.Errorf("%s %s %s", all[0].pod.Name, all[1].pod.Name, all[2].pod.Name)
	}
}

func TestUnusedImages(t *testing.T) {
	now := time.Unix(10000, 0)
	old := now.Add(-time.Hour)
	got := unusedImages(map[string]*imageRecord{
		"pinned": {seen: old, pinned: true}, "used": {seen: old, used: now}, "new": {seen: now},
		"b": {seen: old, used: old.Add(time.Minute)}, "a": {seen: old},
	}, now)
	if !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("%v", got)
	}
}

func TestThreshold(t *testing.T) {
	for s, want := range map[string]int64{"10%": 100, "100Mi": 100 << 20, "": 0} {
		if got := threshold(s, 1000); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}

func TestDelay(t *testing.T) {
	d := delay{first: 10 * time.Second, most: 5 * time.Minute}
	at := time.Unix(0, 0)
	var got []time.Duration
	for range 7 {
		w := d.next(at)
		got = append(got, w)
		at = at.Add(w)
	}
	if want := []time.Duration{10e9, 20e9, 40e9, 80e9, 160e9, 300e9, 300e9}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
	if w := d.next(at.Add(11 * time.Minute)); w != 10*time.Second {
		t.Errorf("after ten quiet minutes: %v", w)
	}
}

func TestCredentials(t *testing.T) {
	s := &corev1.Secret{Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(
		`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpw"},"reg.io:5000/team":{"username":"a","password":"b"},"*.corp.io":{"username":"c"}}}`)}}
	for image, want := range map[string]string{
		"busybox": "u", "docker.io/library/x:1": "u", "reg.io:5000/team/x": "a", "reg.io:5000/other/x": "", "x.corp.io/y@sha256:0": "c", "a.b.corp.io/y": "",
	} {
		user := ""
		if got := credentials(image, []*corev1.Secret{s}); len(got) > 0 {
			user = got[0].Username
		}
		if user != want {
			t.Errorf("%s: %q, want %q", image, user, want)
		}
	}
}

func TestStaticPod(t *testing.T) {
	p, err := decodeStatic([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: etcd}\nspec: {containers: [{name: c, image: x}]}\n"), "/m/etcd.yaml", "N1")
	if err != nil {
		t.Fatal(err)
	}
	if p.Name != "etcd-n1" || p.Namespace != "default" || p.UID == "" || !isStatic(p) || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || p.Spec.Containers[0].ImagePullPolicy != corev1.PullAlways {
		t.Errorf("%+v", p)
	}
	if _, err := decodeStatic([]byte("kind: Node"), "x", "n"); err == nil {
		t.Error("a manifest that is no pod was taken")
	}
}

func TestCountCPUs(t *testing.T) {
	for s, want := range map[string]int{"0": 1, "0-3": 4, "0-3,7": 5, "": 0} {
		if got := countCPUs(s); got != want {
			t.Errorf("%q: %d, want %d", s, got, want)
		}
	}
}
