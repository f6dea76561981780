package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/configuration"
	"knarr/node/kubelet/podtest"
	"knarr/node/kubelet/volume"
)

const private = "reg.io/team/private:1"

// registry lets in who says the password, and everybody for other images.
func registry(image string, auth *cri.AuthConfig) error {
	if image == private && auth.GetPassword() != "right" {
		return status.Error(codes.PermissionDenied, "pull access denied")
	}
	return nil
}

// pullSecret puts a secret for reg.io into the API.
func (n *node) pullSecret(name, password string) {
	config, _ := json.Marshal(map[string]any{"auths": map[string]any{"reg.io": map[string]any{"username": "u", "password": password}}})
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	n.api.put("/api/v1/namespaces/ns/secrets/"+name, map[string]any{"kind": "Secret", "apiVersion": "v1", "type": string(corev1.SecretTypeDockerConfigJson),
		"metadata": map[string]any{"name": name, "namespace": "ns", "uid": "uid-" + name}, "data": map[string]any{corev1.DockerConfigJsonKey: config}}, "ADDED")
}

// user is a pod of an image that pulls with a secret, if it has one.
func user(name, image, secret string, policy corev1.PullPolicy) *corev1.Pod {
	p := podtest.Pod(name, "c-"+name)
	p.Spec.Containers[0].Image, p.Spec.Containers[0].ImagePullPolicy = image, policy
	if secret != "" {
		p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: secret}}
	}
	return p
}

func (n *node) waits(name, reason string) func() bool {
	return func() bool {
		s := n.api.pod(name).Status.ContainerStatuses
		return len(s) == 1 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == reason
	}
}

func (n *node) pulls() (count int) {
	for _, c := range n.rt.Calls() {
		if strings.HasPrefix(c, "PullImage ") {
			count++
		}
	}
	return count
}

// TestPulledImagesStayPrivate: what one pod pulled with its secret is there for
// others only with credentials for it.
func TestPulledImagesStayPrivate(t *testing.T) {
	n := newNode(t)
	n.rt.Registry = registry
	stop := n.start()
	n.pullSecret("right", "right")
	n.pullSecret("wrong", "wrong")
	n.pullSecret("same", "right")
	n.api.addPod(user("owner", private, "right", corev1.PullIfNotPresent))
	n.until("the owner is ready", n.ready("owner"))

	outsiders := func(round string) {
		n.api.addPod(user("none"+round, private, "", corev1.PullIfNotPresent))
		n.api.addPod(user("other"+round, private, "wrong", corev1.PullIfNotPresent))
		n.api.addPod(user("never"+round, private, "", corev1.PullNever))
		refused := func(name string) func() bool {
			return func() bool {
				if slices.Contains(n.rt.Running(), "c-"+name+round) {
					t.Fatalf("pod %s runs the private image without credentials for it", name)
				}
				return n.waits(name+round, "ErrImagePull")() || n.waits(name+round, "ImagePullBackOff")() || n.waits(name+round, "ErrImageNeverPull")()
			}
		}
		n.until("no secret: refused", refused("none"))
		n.until("wrong secret: refused", refused("other"))
		n.until("never pulled: refused", refused("never"))
		if s := n.api.pod("never" + round).Status.ContainerStatuses[0].State.Waiting; s.Reason != "ErrImageNeverPull" || s.Message != `Container image "reg.io/team/private:1" is not present with pull policy of Never` {
			t.Errorf("never pulled: %+v", s)
		}
	}
	outsiders("1")

	before := n.pulls()
	n.api.addPod(user("again", private, "right", corev1.PullNever))
	n.until("the same secret needs no pull", n.ready("again"))
	n.api.addPod(user("copy", private, "same", corev1.PullIfNotPresent))
	n.until("the same credentials in another secret need no pull", n.ready("copy"))
	if got := n.pulls(); got != before {
		t.Errorf("%d pulls for credentials known to be right", got-before)
	}

	stop()
	defer n.start()()
	outsiders("2")
	files, _ := filepath.Glob(filepath.Join(n.dir, "kubelet", "image_manager", "pulled", "sha256-*"))
	if len(files) != 1 {
		t.Fatalf("records of pulls: %v", files)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(b), `"kind":"ImagePulledRecord","apiVersion":"kubelet.config.k8s.io/v1beta1"`) || strings.Contains(string(b), "password") {
		t.Errorf("record %s", b)
	}
}

// TestLoadedImagesAreForAll: an image that no kubelet pulled, and one that was
// pulled without credentials, needs none.
func TestLoadedImagesAreForAll(t *testing.T) {
	n := newNode(t)
	n.rt.Registry = registry
	n.rt.Load(private)
	defer n.start()()
	n.api.addPod(user("loaded", private, "", corev1.PullNever))
	n.until("ready", n.ready("loaded"))
	n.api.addPod(user("open", "reg.io/open:1", "", corev1.PullIfNotPresent))
	n.until("ready", n.ready("open"))
	before := n.pulls()
	n.api.addPod(user("open2", "reg.io/open:1", "", corev1.PullNever))
	n.until("ready", n.ready("open2"))
	if got := n.pulls(); got != before {
		t.Errorf("%d pulls of an image everybody may have", got-before)
	}
}

// TestPullFromPeers: an image whose registry does not answer is had from other nodes, and
// is everybody's; one that the registry refuses is not asked for there.
func TestPullFromPeers(t *testing.T) {
	n := newNode(t)
	n.rt.Registry = func(image string, _ *cri.AuthConfig) error {
		if image == private {
			return status.Error(codes.Unknown, "failed to resolve reference: unexpected status from HEAD request: 403 Forbidden")
		}
		return status.Error(codes.Unavailable, "dial tcp: lookup reg.io: no such host")
	}
	var asked atomic.Pointer[[]string]
	n.config = func(c *Config) {
		c.PullFromPeers = func(_ context.Context, image string) error {
			all := []string{image}
			if before := asked.Load(); before != nil {
				all = append(*before, image)
			}
			asked.Store(&all)
			n.rt.Load(image)
			return nil
		}
	}
	defer n.start()()
	n.api.addPod(user("shared", "reg.io/open:1", "", corev1.PullIfNotPresent))
	n.until("ready", n.ready("shared"))
	n.api.addPod(user("refused", private, "", corev1.PullIfNotPresent))
	n.until("refused", n.waits("refused", "ErrImagePull"))
	n.api.addPod(user("later", "reg.io/open:1", "", corev1.PullNever))
	n.until("ready", n.ready("later"))
	if all := asked.Load(); all == nil || !slices.Equal(*all, []string{"reg.io/open:1"}) {
		t.Errorf("other nodes were asked for %v", all)
	}
}

func TestRefused(t *testing.T) {
	for text, want := range map[string]bool{
		`failed to pull and unpack image "r.io/a:1": failed to resolve reference "r.io/a:1": r.io/a:1: not found`:                                                             true,
		`failed to resolve reference "r.io/a:1": unexpected status from HEAD request to https://r.io/v2/a/manifests/1: 403 Forbidden`:                                         true,
		`failed to resolve reference "r.io/a:1": pull access denied, repository does not exist or may require authorization: authorization failed: no basic auth credentials`: true,
		`failed to resolve reference "r.io/a:1": failed to do request: Head "https://r.io/v2/a/manifests/1": dial tcp: lookup r.io: no such host`:                             false,
		`failed to resolve reference "r.io/a:1": failed to do request: Head "https://r.io/v2/a/manifests/1": dial tcp 192.0.2.1:443: connect: network is unreachable`:         false,
		`failed to copy: httpReadSeeker: failed open: unexpected status from GET request to https://r.io/v2/a/blobs/sha256:0: 503 Service Unavailable`:                        false,
		`failed to resolve reference "r.io/a:1": unexpected status from HEAD request to https://r.io/v2/a/manifests/1: 429 Too Many Requests`:                                 true,
		`failed to copy: httpReadSeeker: failed open: unexpected status: toomanyrequests: You have reached your pull rate limit`:                                              true,
	} {
		if got := refused(status.Error(codes.Unknown, text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
	if !refused(status.Error(codes.NotFound, "no such image")) {
		t.Error("an image that is not found is not refused")
	}
}

func TestPullReason(t *testing.T) {
	for text, want := range map[string][2]string{
		"RegistryUnavailable: 503":  {"RegistryUnavailable", "image pull failed for x because the registry is unavailable: 503"},
		"SignatureValidationFailed": {"SignatureValidationFailed", "image pull failed for x because the signature validation failed"},
		"not found":                 {"ErrImagePull", "rpc error: code = Unknown desc = not found"},
	} {
		if reason, message := pullReason("x", status.Error(codes.Unknown, text)); reason != want[0] || message != want[1] {
			t.Errorf("%s: %s, %s", text, reason, message)
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

// TestCrashDelay: what is forgotten is how a container ended that ran for ten minutes,
// whatever the most that a start waits.
func TestCrashDelay(t *testing.T) {
	for _, most := range []time.Duration{time.Second, 5 * time.Minute} {
		k := &Kubelet{cfg: Config{Settings: &configuration.Settings{}}}
		k.cfg.Settings.CrashLoopBackOff.MaxContainerRestartPeriod = &metav1.Duration{Duration: most}
		d := k.crashDelay()
		for range 20 {
			d.next(d.last)
		}
		if at := d.last.Add(9 * time.Minute); d.forgotten(at) || d.next(at) != most {
			t.Errorf("at most %v: forgotten after nine minutes", most)
		}
		if at := d.last.Add(11 * time.Minute); !d.forgotten(at) || d.next(at) != min(most, crashFirst) {
			t.Errorf("at most %v: not forgotten after eleven minutes", most)
		}
	}
}

// TestCrashBackoffAndTheClock: a container that ended in the future, as the clock was set back
// since, waits no longer for its restart than others.
func TestCrashBackoffAndTheClock(t *testing.T) {
	k := admitting(t)
	k.volumes = &volume.Manager{}
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(k, podtest.Pod("p", "c"))
		w.pod = w.inbox.pod
		c := podtest.Container("c", podtest.Exited, 1)
		c.FinishedAt = time.Now().Add(time.Hour).UnixNano()
		w.observed = podtest.Observed(c)
		w.readMessages()
		w.crashed(c)
		w.container("c").crashes.last = c.Finished().Add(-time.Second) // when it was started
		if left := w.crashLeft("c", c); left != crashFirst {
			t.Errorf("waits %v", left)
		}
		time.Sleep(crashFirst)
		if left := w.crashLeft("c", c); left != 0 {
			t.Errorf("then %v", left)
		}
	})
}

// TestParallelPulls: as many images are pulled at once as the settings allow.
func TestParallelPulls(t *testing.T) {
	const pods = 5
	for name, c := range map[string]struct {
		serialize bool
		most      *int32
		want      int
	}{
		"one after the other": {true, nil, 1}, "two at once": {false, new(int32(2)), 2}, "without a limit": {false, nil, pods},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.config = func(cfg *Config) {
				cfg.Settings.SerializeImagePulls, cfg.Settings.MaxParallelImagePulls = new(c.serialize), c.most
			}
			n.rt.Registry = func(string, *cri.AuthConfig) error { return nil }
			var pulling, most, reached atomic.Int32
			release := make(chan struct{})
			n.rt.Pulling = func(context.Context, string) {
				reached.Add(1)
				now := pulling.Add(1)
				for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
				}
				<-release
				pulling.Add(-1)
			}
			n.start()
			for i := range pods {
				p := podtest.Pod(fmt.Sprint("p", i), "c")
				p.Spec.Containers[0].Image = fmt.Sprintf("reg.io/i%d:1", i)
				n.api.addPod(p)
			}
			for i := range pods {
				n.until("as many as may begin", func() bool { return int(reached.Load()) >= min(i+c.want, pods) })
				release <- struct{}{}
			}
			for i := range pods {
				n.until("ready", n.ready(fmt.Sprint("p", i)))
			}
			if got := int(most.Load()); got != c.want {
				t.Errorf("%d images were pulled at once, want %d", got, c.want)
			}
		})
	}
}
