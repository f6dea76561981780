package networkpolicy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"knarr/internal/apitest"
	"knarr/internal/run"
)

// A recorder is a dataplane that can be told to fail, and what reports there are.
type recorder struct {
	mu       sync.Mutex
	kernel   *fakeKernel
	refuse   map[cache.ObjectName]error
	fail     error
	wholes   int
	opened   []netip.Addr
	gone     func(why string)
	watches  int   // how often it was watched
	lost     error // by which each watch ends at once
	lostWhy  string
	attached func(string, netip.Addr)
}

func (r *recorder) Apply(c *Changes, all bool) (map[cache.ObjectName]error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if all {
		r.wholes++
	}
	if err := r.fail; err != nil {
		r.fail = nil
		return nil, err
	}
	if _, err := r.kernel.Apply(c, all); err != nil {
		return nil, err
	}
	refused := map[cache.ObjectName]error{}
	for _, ch := range c.Chains {
		if ch.Now != nil && r.refuse[ch.Now.Policy] != nil {
			refused[ch.Now.Policy] = r.refuse[ch.Now.Policy]
		}
	}
	return refused, nil
}

func (r *recorder) Open(addrs []netip.Addr) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.opened = append(r.opened, addrs...)
	return nil
}

func (r *recorder) Watch(ctx context.Context, gone func(why string), attached func(string, netip.Addr)) error {
	r.mu.Lock()
	r.gone, r.attached = gone, attached
	r.watches++
	lost := r.lost
	r.mu.Unlock()
	if lost != nil {
		gone(r.lostWhy)
		return lost
	}
	<-ctx.Done()
	return nil
}

func (r *recorder) Close() error { return nil }

// look waits until all is quiet; informers look every tenth of a second whether
// they have everything.
func (r *recorder) look(do func()) {
	time.Sleep(time.Second)
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

// inCluster runs a controller as the user that nodes give it, beside an API
// server.
func inCluster(t *testing.T, test func(t *testing.T, client kubernetes.Interface, r *recorder)) {
	synctest.Test(t, func(t *testing.T) {
		api, stop := apitest.New(t)
		defer stop()
		r := &recorder{kernel: newFake(), refuse: map[cache.ObjectName]error{}}
		c, err := New(Config{Kube: api.Config(&user.DefaultInfo{Name: "system:kube-proxy"}), NodeName: thisNode, Dataplane: r})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group run.Group
		group.Go("controller", func() {
			if err := c.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		defer group.Wait()
		defer cancel()
		synctest.Wait()
		client := api.Client(t)
		_, err = client.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		must0(t, err)
		test(t, client, r)
	})
}

func createPod(t *testing.T, client kubernetes.Interface, name string) *corev1.Pod {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"pod": name}}}
	p.Spec = corev1.PodSpec{NodeName: thisNode, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	p, err := client.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
	must0(t, err)
	return p
}

func createPolicy(t *testing.T, client kubernetes.Interface, name string, spec networkingv1.NetworkPolicySpec) {
	t.Helper()
	_, err := client.NetworkingV1().NetworkPolicies("default").Create(t.Context(), &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	must0(t, err)
}

func must0(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestController: a policy, then a new pod, then the pod's status and end.
func TestController(t *testing.T) {
	inCluster(t, func(t *testing.T, client kubernetes.Interface, r *recorder) {
		a, stranger := addr("10.42.0.10"), addr("10.42.0.77")
		r.look(func() {})
		r.attached("nobody", stranger) // without policies nobody waits
		r.look(func() {
			if !slices.Contains(r.opened, stranger) {
				t.Errorf("opened %v before there was a policy", r.opened)
			}
		})
		createPolicy(t, client, "deny", ingress(selects("pod", "a")))
		r.look(func() {})
		p := createPod(t, client, "a")
		r.look(func() {
			if len(r.kernel.verdicts[Ingress]) != 0 {
				t.Errorf("isolated without an address: %v", r.kernel.verdicts)
			}
		})
		r.attached(string(p.UID), a)
		r.attached("unknown", addr("10.42.0.78"))
		r.look(func() {
			if r.kernel.verdicts[Ingress][a] == "" || !slices.Contains(r.opened, a) || slices.Contains(r.opened, addr("10.42.0.78")) {
				t.Errorf("isolated %v, opened %v", r.kernel.verdicts, r.opened)
			}
		})
		p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, a.String(), []corev1.PodIP{{IP: a.String()}}
		p, err := client.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		must0(t, err)
		before := 0
		r.look(func() {
			if before = r.wholes; r.kernel.verdicts[Ingress][a] == "" {
				t.Error("not isolated any more")
			}
		})
		r.gone("somebody deleted them")
		r.look(func() {
			if r.wholes != before+1 || r.kernel.verdicts[Ingress][a] == "" {
				t.Errorf("%d times whole after %d, %v", r.wholes, before, r.kernel.verdicts)
			}
			r.fail = errors.New("no buffer space")
		})
		p.Status.Phase = corev1.PodSucceeded
		_, err = client.CoreV1().Pods("default").UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
		must0(t, err)
		r.look(func() {
			if len(r.kernel.verdicts[Ingress]) != 0 || len(r.kernel.chains) != 0 || r.wholes != before+2 {
				t.Errorf("after an error: %v, %v, %d times whole", r.kernel.verdicts, r.kernel.chains, r.wholes)
			}
		})
	})
}

// TestRefusedPolicy: its user is told once, and it is tried again.
func TestRefusedPolicy(t *testing.T) {
	inCluster(t, func(t *testing.T, client kubernetes.Interface, r *recorder) {
		r.look(func() { r.refuse[objectName("default", "bad")] = errors.New("cannot allocate memory") })
		createPolicy(t, client, "bad", ingress(selects()))
		createPolicy(t, client, "good", ingress(selects()))
		p := createPod(t, client, "a")
		synctest.Wait()
		r.attached(string(p.UID), addr("10.42.0.10"))
		time.Sleep(10 * time.Minute)
		tries := 0
		r.look(func() {
			if tries = r.wholes; tries < 5 || len(r.kernel.verdicts[Ingress]) != 1 {
				t.Errorf("tried whole %d times, isolated %v", tries, r.kernel.verdicts)
			}
			delete(r.refuse, objectName("default", "bad"))
		})
		time.Sleep(10 * time.Minute)
		r.look(func() { tries = r.wholes })
		time.Sleep(10 * time.Minute)
		r.look(func() {
			if r.wholes != tries {
				t.Error("it is tried again though it was accepted")
			}
		})
		events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must0(t, err)
		if len(events.Items) != 1 || events.Items[0].Reason != "FailedToWriteNetworkPolicyRules" || events.Items[0].InvolvedObject.Name != "bad" ||
			events.Items[0].Message != "This NetworkPolicy allows nothing on this node: cannot allocate memory" || events.Items[0].Count > 1 {
			t.Errorf("events %+v", events.Items)
		}
	})
}

// TestNoRoom: the user of a policy that there is no room for is told, also if the
// pods it selects are isolated already and nothing changes in the kernel.
func TestNoRoom(t *testing.T) {
	inCluster(t, func(t *testing.T, client kubernetes.Interface, r *recorder) {
		createPolicy(t, client, "deny", ingress(selects()))
		p := createPod(t, client, "a")
		r.look(func() {})
		r.attached(string(p.UID), addr("10.42.0.10"))
		for i := range 10 {
			createPolicy(t, client, fmt.Sprint("large", i), ingress(selects(), manyPeers(fmt.Sprint("l", i), maxMatches)))
		}
		r.look(func() {
			if len(r.kernel.sets) > maxNamespace/2+1 || r.kernel.verdicts[Ingress][addr("10.42.0.10")] == "" {
				t.Errorf("%d sets, isolated %v", len(r.kernel.sets), r.kernel.verdicts)
			}
		})
		events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		must0(t, err)
		warned := 0
		for _, e := range events.Items {
			if e.Reason == "FailedToWriteNetworkPolicyRules" && strings.Contains(e.Message, "there is no room") {
				warned++
			}
		}
		if warned != 6 { // four large ones are 8,004 chains, rules and sets
			t.Errorf("%d policies have an event: %+v", warned, events.Items)
		}
	})
}

// TestWatchFails: a watch that cannot be is tried ever more rarely, and logged
// once.
func TestWatchFails(t *testing.T) {
	var text bytes.Buffer
	was := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&text, nil)))
	t.Cleanup(func() { slog.SetDefault(was) })
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{lost: errors.New("no buffer space"), lostWhy: "notices of the kernel were lost"}
		c, p := &Controller{cfg: Config{Table: "policies"}}, newPending()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.watch(ctx, r, p)
		}()
		time.Sleep(time.Hour)
		cancel()
		<-ended
		if r.watches < 100 || r.watches > 130 {
			t.Errorf("watched %d times in an hour", r.watches)
		}
	})
	for _, want := range []string{`"watch the rules of network policies, trying again" table=policies err="no buffer space"`, `"write network policy rules anew" table=policies why="notices of the kernel were lost"`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%s is not logged", want)
		}
	}
	if n := strings.Count(text.String(), "\n"); n > 3 {
		t.Errorf("logged %d lines:\n%s", n, text.String())
	}
}
