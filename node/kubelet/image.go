package kubelet

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A waitError is why a container waits: a reason users know and a message.
type waitError struct{ reason, message string }

func (e waitError) Error() string { return e.reason + ": " + e.message }

// A delay doubles from its first value to its most and is forgotten when
// nothing failed for twice its most.
type delay struct {
	first, most time.Duration
	cur         time.Duration
	last        time.Time
}

// next takes note of a failure at t and is how long to wait after it.
func (d *delay) next(t time.Time) time.Duration {
	switch {
	case d.cur == 0 || t.Sub(d.last) > 2*d.most:
		d.cur = d.first
	default:
		d.cur = min(2*d.cur, d.most)
	}
	d.last = t
	return d.cur
}

// pullGate limits and remembers image pulls, by pod and image.
type pullGate struct {
	mu    sync.Mutex
	fails map[string]*pullFail
	slots chan struct{} // nil: as many at once as asked for
}

type pullFail struct {
	delay   delay
	message string
	told    bool
}

const (
	pullFirst = 10 * time.Second
	pullMost  = 5 * time.Minute
)

func withTag(image string) string {
	if strings.Contains(image, "@") {
		return image
	}
	if i := strings.LastIndexByte(image, ':'); i > strings.LastIndexByte(image, '/') {
		return image
	}
	return image + ":latest"
}

// ensureImage makes an image present by its policy. The error is a waitError.
func (k *Kubelet) ensureImage(ctx context.Context, pod *corev1.Pod, ref *corev1.ObjectReference, image string, policy corev1.PullPolicy, sandbox *cri.PodSandboxConfig) (*cri.Image, error) {
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", image, image, err)
		k.events.Event(ref, corev1.EventTypeWarning, "InspectFailed", msg)
		return nil, waitError{"InvalidImageName", msg}
	}
	tagged := withTag(image)
	spec := &cri.ImageSpec{Image: tagged, Annotations: pod.Annotations, RuntimeHandler: k.handlerOf(pod)}
	if policy == "" {
		policy = corev1.PullIfNotPresent
		if strings.HasSuffix(tagged, ":latest") {
			policy = corev1.PullAlways
		}
	}
	if policy != corev1.PullAlways {
		res, err := k.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
		switch {
		case err != nil:
			msg := fmt.Sprintf("Failed to inspect image %q: %v", "", err)
			k.events.Event(ref, corev1.EventTypeWarning, "InspectFailed", msg)
			return nil, waitError{"ImageInspectError", msg}
		case res.Image != nil && res.Image.Id != "":
			k.events.Event(ref, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", image))
			return res.Image, nil
		case policy == corev1.PullNever:
			msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", image)
			k.events.Event(ref, corev1.EventTypeWarning, "ErrImageNeverPull", msg)
			return nil, waitError{"ErrImageNeverPull", msg}
		}
	}
	return k.pull(ctx, pod, ref, image, spec, sandbox)
}

func (k *Kubelet) pull(ctx context.Context, pod *corev1.Pod, ref *corev1.ObjectReference, image string, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig) (*cri.Image, error) {
	key := string(pod.UID) + "_" + image
	k.pulls.mu.Lock()
	f := k.pulls.fails[key]
	if f != nil && time.Since(f.delay.last) < f.delay.cur {
		msg := fmt.Sprintf("Back-off pulling image %q", image)
		full, told := msg+": "+f.message, f.told
		f.told = true
		k.pulls.mu.Unlock()
		if !told {
			k.events.Event(ref, corev1.EventTypeNormal, "BackOff", msg)
		}
		return nil, waitError{"ImagePullBackOff", full}
	}
	k.pulls.mu.Unlock()

	k.events.Event(ref, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", image))
	waiting := time.Now()
	if k.pulls.slots != nil {
		select {
		case k.pulls.slots <- struct{}{}:
			defer func() { <-k.pulls.slots }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	begun := time.Now()
	got, err := k.pullWithSecrets(ctx, pod, spec, sandbox)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var img *cri.Image
	if err == nil {
		var res *cri.ImageStatusResponse
		res, err = k.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: got}})
		if err == nil && res.Image == nil {
			err = fmt.Errorf("image %q is gone after its pull", image)
		}
		if err == nil {
			img = res.Image
		}
	}
	k.pulls.mu.Lock()
	defer k.pulls.mu.Unlock()
	if err != nil {
		k.events.Event(ref, corev1.EventTypeWarning, "Failed", fmt.Sprintf("Failed to pull image %q: %v", image, err))
		reason, msg := pullReason(image, err)
		if f == nil {
			f = &pullFail{delay: delay{first: pullFirst, most: pullMost}}
			k.pulls.fails[key] = f
		}
		f.delay.next(time.Now())
		f.message, f.told = reason+": "+msg, false
		return nil, waitError{reason, msg}
	}
	delete(k.pulls.fails, key)
	k.wakeNode() // it shows the images it has
	ms := func(d time.Duration) time.Duration { return d.Truncate(time.Millisecond) }
	k.events.Event(ref, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		image, ms(time.Since(begun)), ms(time.Since(waiting)), img.Size))
	return img, nil
}

func pullReason(image string, err error) (reason, message string) {
	text := status.Convert(err).Message()
	for _, r := range []string{"RegistryUnavailable", "SignatureValidationFailed"} {
		if strings.HasPrefix(text, r) {
			if r == "RegistryUnavailable" {
				return r, fmt.Sprintf("image pull failed for %s because the registry is unavailable", image)
			}
			return r, fmt.Sprintf("image pull failed for %s because the signature validation failed", image)
		}
	}
	return "ErrImagePull", err.Error()
}

// pullBackoff is how long the pod's pulls of an image have to wait.
func (k *Kubelet) pullBackoff(pod *corev1.Pod, image string) time.Duration {
	k.pulls.mu.Lock()
	defer k.pulls.mu.Unlock()
	if f := k.pulls.fails[string(pod.UID)+"_"+image]; f != nil {
		return f.delay.cur - time.Since(f.delay.last)
	}
	return 0
}

func (k *Kubelet) forgetPulls(uid string) {
	k.pulls.mu.Lock()
	defer k.pulls.mu.Unlock()
	for key := range k.pulls.fails {
		if strings.HasPrefix(key, uid+"_") {
			delete(k.pulls.fails, key)
		}
	}
}

// pullWithSecrets tries each matching credential, then none.
func (k *Kubelet) pullWithSecrets(ctx context.Context, pod *corev1.Pod, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig) (string, error) {
	var secrets []*corev1.Secret
	for _, r := range pod.Spec.ImagePullSecrets {
		if r.Name == "" {
			continue
		}
		if s, err := k.objects.Secret(pod.Namespace, r.Name); err == nil {
			secrets = append(secrets, s)
		}
	}
	var errs []error
	for _, auth := range append(credentials(spec.Image, secrets), nil) {
		if auth == nil && len(errs) > 0 {
			break
		}
		res, err := k.images.PullImage(ctx, &cri.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: sandbox})
		if err == nil {
			return res.ImageRef, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return "", errs[0]
	}
	return "", errors.Join(errs...)
}

type dockerAuth struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// credentials picks from secrets what is meant for the image's registry.
func credentials(image string, secrets []*corev1.Secret) (out []*cri.AuthConfig) {
	repo := strings.SplitN(image, "@", 2)[0]
	if i := strings.LastIndexByte(repo, ':'); i > strings.LastIndexByte(repo, '/') {
		repo = repo[:i]
	}
	host, rest, ok := strings.Cut(repo, "/")
	if !ok || !strings.ContainsAny(host, ".:") && host != "localhost" {
		host, rest = "docker.io", repo
	}
	for _, s := range secrets {
		var all map[string]dockerAuth
		if b, ok := s.Data[corev1.DockerConfigJsonKey]; ok {
			var f struct {
				Auths map[string]dockerAuth `json:"auths"`
			}
			if json.Unmarshal(b, &f) != nil {
				continue
			}
			all = f.Auths
		} else if b, ok := s.Data[corev1.DockerConfigKey]; ok {
			if json.Unmarshal(b, &all) != nil {
				continue
			}
		}
		for registry, a := range all {
			if !matches(registry, host, rest) {
				continue
			}
			c := &cri.AuthConfig{Username: a.Username, Password: a.Password, IdentityToken: a.IdentityToken, ServerAddress: registry}
			if c.Username == "" && a.Auth != "" {
				if raw, err := base64.StdEncoding.DecodeString(a.Auth); err == nil {
					c.Username, c.Password, _ = strings.Cut(string(raw), ":")
				}
			}
			out = append(out, c)
		}
	}
	return out
}

// matches says whether credentials filed under entry are for host and path.
func matches(entry, host, rest string) bool {
	entry = strings.TrimPrefix(strings.TrimPrefix(entry, "https://"), "http://")
	entry = strings.TrimSuffix(entry, "/")
	for _, v := range []string{"/v1", "/v2"} {
		entry = strings.TrimSuffix(entry, v)
	}
	eh, ep, _ := strings.Cut(entry, "/")
	if eh == "index.docker.io" {
		eh = "docker.io"
	}
	if ok, _ := path.Match(eh, host); !ok || strings.Count(eh, ".") != strings.Count(host, ".") {
		return false
	}
	return ep == "" || rest == ep || strings.HasPrefix(rest, ep+"/")
}
