package kubelet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
	"knarr/node/kubelet/pullrecords"
)

// A waitError is why a container waits: a reason users know and a message.
type waitError struct{ reason, message string }

func (e waitError) Error() string { return e.reason + ": " + e.message }

// A delay doubles from its first value to its most and is forgotten when nothing failed for
// a while, or twice its most.
type delay struct {
	first, most time.Duration
	forget      time.Duration
	cur         time.Duration
	last        time.Time
}

// next takes note of a failure at t and is how long to wait after it.
func (d *delay) next(t time.Time) time.Duration {
	switch {
	case d.cur == 0 || d.forgotten(t):
		d.cur = d.first
	default:
		d.cur = min(2*d.cur, d.most)
	}
	d.last = t
	return d.cur
}

// forgotten says whether a failure at t is the first for long enough.
func (d *delay) forgotten(t time.Time) bool { return t.Sub(d.last) > cmp.Or(d.forget, 2*d.most) }

// pullGate limits and remembers image pulls, by pod and image.
type pullGate struct {
	mu     sync.Mutex
	fails  map[pullKey]*pullFail
	slots  chan struct{} // nil: the settings set no bound, and shared does
	shared pullSlots
	rate   flowcontrol.RateLimiter // nil: as often as asked for

	running pullsRunning
}

// slot waits until one more image may be pulled.
func (g *pullGate) slot(ctx context.Context, namespace string) (back func(), err error) {
	if g.slots == nil {
		return g.shared.take(ctx, namespace)
	}
	select {
	case g.slots <- struct{}{}:
		return func() { <-g.slots }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

type pullKey struct {
	pod   types.UID
	image string
}

type pullFail struct {
	delay    delay
	message  string
	reported bool
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

// errPullQPS is why an image is not pulled that would be one too many in a second.
var errPullQPS = errors.New("pull QPS exceeded")

// ensureImage makes an image present by its policy. The error is a waitError.
func (k *Kubelet) ensureImage(ctx context.Context, pod *corev1.Pod, ref *corev1.ObjectReference, image string, policy corev1.PullPolicy, sandbox *cri.PodSandboxConfig) (*cri.Image, error) {
	policy = pullPolicy(image, policy)
	known := imageRequest{}
	defer func() { k.metrics.images.count(policy, &known) }()
	if _, err := reference.ParseNormalizedNamed(image); err != nil {
		msg := fmt.Sprintf("Failed to apply default image tag %q: couldn't parse image name %q: %v", image, image, err)
		k.events.Event(ref, corev1.EventTypeWarning, "InspectFailed", msg)
		return nil, waitError{"InvalidImageName", msg}
	}
	tagged := withTag(image)
	spec := &cri.ImageSpec{Image: tagged, Annotations: pod.Annotations, RuntimeHandler: k.handlerOf(pod)}
	lookup := sync.OnceValues(func() ([]credential, error) { return k.pullCredentials(ctx, pod, tagged) })
	if policy != corev1.PullAlways {
		res, err := k.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
		switch {
		case err != nil:
			msg := fmt.Sprintf("Failed to inspect image %q: %v", image, err)
			k.events.Event(ref, corev1.EventTypeWarning, "InspectFailed", msg)
			return nil, waitError{"ImageInspectError", msg}
		case res.Image != nil && res.Image.Id != "":
			known = imageRequest{present: new(true), pull: new(false)}
			if !k.records.MustPull(image, res.Image.Id, func() pullrecords.Presented {
				all, _ := lookup() // the pull says what is wrong
				return presented(all)
			}) {
				k.pullTimes(pod.UID).end(image, time.Now()) // somebody else's pull was sooner
				k.events.Event(ref, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Container image %q already present on machine and can be accessed by the pod", image))
				return res.Image, nil
			}
			if ctx.Err() != nil { // its credentials may not all have been asked for
				return nil, ctx.Err()
			}
			k.imageWaits.deny(pod.UID, image, res.Image.Id)
			known.pull = new(true)
		default:
			known.present = new(false)
		}
		if policy == corev1.PullNever {
			// The same words whether it is not there or not for this pod, which must
			// not learn what others pulled.
			msg := fmt.Sprintf("Container image %q is not present with pull policy of Never", image)
			k.events.Event(ref, corev1.EventTypeWarning, "ErrImageNeverPull", msg)
			return nil, waitError{"ErrImageNeverPull", msg}
		}
	}
	known.pull = new(true)
	return k.pull(ctx, pod, ref, image, spec, sandbox, lookup)
}

func (k *Kubelet) pull(ctx context.Context, pod *corev1.Pod, ref *corev1.ObjectReference, image string, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig, lookup func() ([]credential, error)) (*cri.Image, error) {
	key := pullKey{pod.UID, image}
	k.pulls.mu.Lock()
	f := k.pulls.fails[key]
	if f != nil && time.Since(f.delay.last) < f.delay.cur {
		msg := fmt.Sprintf("Back-off pulling image %q", image)
		full, reported := msg+": "+f.message, f.reported
		f.reported = true
		k.pulls.mu.Unlock()
		if !reported {
			k.events.Event(ref, corev1.EventTypeNormal, "BackOff", msg)
		}
		return nil, waitError{"ImagePullBackOff", full}
	}
	k.pulls.mu.Unlock()

	// Before its turn to pull: a plugin may take a minute, in which others can pull.
	creds, err := lookup()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	k.events.Event(ref, corev1.EventTypeNormal, "Pulling", fmt.Sprintf("Pulling image %q", image))
	waiting, times := time.Now(), k.pullTimes(pod.UID)
	times.begin(image, waiting)
	began := waiting
	var img *cri.Image
	if err == nil {
		back, serr := k.pulls.slot(ctx, pod.Namespace)
		if serr != nil {
			return nil, serr
		}
		defer back()
		began = time.Now()
		img, err = k.followedPull(ctx, pod, ref, image, spec, sandbox, creds)
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
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
		f.message, f.reported = reason+": "+msg, false
		return nil, waitError{reason, msg}
	}
	delete(k.pulls.fails, key)
	k.wakeNode() // it shows the images it has
	times.end(image, time.Now())
	k.metrics.images.pulled(img.Size, time.Since(waiting))
	ms := func(d time.Duration) time.Duration { return d.Truncate(time.Millisecond) }
	k.events.Event(ref, corev1.EventTypeNormal, "Pulled", fmt.Sprintf("Successfully pulled image %q in %v (%v including waiting). Image size: %v bytes.",
		image, ms(time.Since(began)), ms(time.Since(waiting)), img.Size))
	return img, nil
}

// followedPull pulls an image, if that is not one too many in a second, tells how far it is,
// and can be called off.
func (k *Kubelet) followedPull(ctx context.Context, pod *corev1.Pod, ref *corev1.ObjectReference, image string, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig, creds []credential) (*cri.Image, error) {
	if k.pulls.rate != nil && !k.pulls.rate.TryAccept() {
		return nil, errPullQPS
	}
	pulling, end := ctx, func() {}
	if !podspec.IsCritical(pod) {
		pulling, end = k.pulls.running.begin(ctx)
	}
	defer end()
	defer k.followPull(pulling, ref, image)()
	img, err := k.recordedPull(pulling, image, spec, sandbox, creds)
	if err != nil && context.Cause(pulling) == errCalledOff {
		err = errCalledOff // the runtime says that it was cancelled
	}
	return img, err
}

// recordedPull pulls an image and notes with which credentials.
func (k *Kubelet) recordedPull(ctx context.Context, image string, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig, creds []credential) (*cri.Image, error) {
	if err := k.records.Begin(image); err != nil {
		return nil, fmt.Errorf("Failed to record image pull intent for container image %q: %w", image, err) //nolint:staticcheck // upstream's words
	}
	img, used, err := k.pullWith(ctx, spec, sandbox, creds)
	if err != nil && k.cfg.PullFromPeers != nil && ctx.Err() == nil && !refused(err) {
		if fromPeers, perr := k.pullFromPeers(ctx, spec); perr == nil {
			slog.Info("an image is from another node, as its registry does not answer", "image", image, "err", err)
			img, used, err = fromPeers, pullrecords.Credentials{NodePodsAccessible: true}, nil
		} else {
			err = fmt.Errorf("%w; nor from other nodes: %w", err, perr)
		}
	}
	if err != nil {
		end := k.records.Fail
		if ctx.Err() != nil && k.mayHave(ctx, spec) { // the runtime was done all the same
			end = k.records.GiveUp
		}
		if rerr := end(image); rerr != nil {
			slog.Warn("end the record of a pull", "image", image, "err", rerr)
		}
		return nil, err
	}
	if err := k.records.Succeed(image, img.Id, used); err != nil {
		slog.Warn("record a pull", "image", image, "err", err)
	}
	return img, nil
}

// statusTime bounds the question for an image that was just pulled.
const statusTime = 30 * time.Second

// mayHave says whether the runtime has an image, or that it does not say.
func (k *Kubelet) mayHave(ctx context.Context, spec *cri.ImageSpec) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTime)
	defer cancel()
	st, err := k.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
	return err != nil || st.Image != nil
}

// pullWith tries one credential after the other, or without any if there is none.
func (k *Kubelet) pullWith(ctx context.Context, spec *cri.ImageSpec, sandbox *cri.PodSandboxConfig, creds []credential) (*cri.Image, pullrecords.Credentials, error) {
	used := pullrecords.Credentials{NodePodsAccessible: true}
	pull := func(auth *cri.AuthConfig) (*cri.Image, error) {
		res, err := k.images.PullImage(ctx, &cri.PullImageRequest{Image: spec, Auth: auth, SandboxConfig: sandbox})
		if err != nil {
			return nil, err
		}
		// Also for a pod that ends just now: without a record anybody could have the image.
		asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), statusTime)
		defer cancel()
		st, err := k.images.ImageStatus(asked, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: res.ImageRef}})
		if err == nil && st.Image == nil {
			err = fmt.Errorf("image %q is gone after its pull", spec.Image)
		}
		return st.GetImage(), err
	}
	if len(creds) == 0 {
		img, err := pull(nil)
		return img, used, err
	}
	var errs []error
	for _, c := range creds {
		img, err := pull(c.AuthConfig)
		if err == nil {
			return img, c.used(), nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 1 {
		return nil, used, errs[0]
	}
	return nil, used, errors.Join(errs...)
}

// pullFromPeers pulls an image from other nodes.
func (k *Kubelet) pullFromPeers(ctx context.Context, spec *cri.ImageSpec) (*cri.Image, error) {
	if err := k.cfg.PullFromPeers(ctx, spec.Image); err != nil {
		return nil, err
	}
	st, err := k.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: spec})
	if err == nil && st.Image == nil {
		err = fmt.Errorf("image %q is gone after its pull", spec.Image)
	}
	return st.GetImage(), err
}

// refusals are how runtimes say that a registry answered, and that there is no such image,
// or not for this pod, or not now. The runtime's own word for the first two is the first.
var refusals = []string{": not found", "404 Not Found", "401 Unauthorized", "403 Forbidden", "429 Too Many Requests", "pull access denied", "insufficient_scope", "manifest unknown", "toomanyrequests"}

// refused says whether a registry answered that a pod does not get an image. Then no other
// node is asked for it either: it may have been taken back. Who asks too often is answered
// too, and is no reason to believe others.
func refused(err error) bool {
	if status.Code(err) == codes.NotFound {
		return true
	}
	text := err.Error()
	return slices.ContainsFunc(refusals, func(r string) bool { return strings.Contains(text, r) })
}

// pullReasons are what runtimes say at the beginning of their errors, and what
// users get to read.
var pullReasons = map[string]string{
	"RegistryUnavailable":       "the registry is unavailable",
	"SignatureValidationFailed": "the signature validation failed",
}

func pullReason(image string, err error) (reason, message string) {
	text := status.Convert(err).Message()
	for r, why := range pullReasons {
		if detail, ok := strings.CutPrefix(text, r); ok {
			return r, fmt.Sprintf("image pull failed for %s because %s%s", image, why, detail)
		}
	}
	return "ErrImagePull", err.Error()
}

// pullBackoff is how long the pod's pulls of an image have to wait.
func (k *Kubelet) pullBackoff(pod *corev1.Pod, image string) time.Duration {
	k.pulls.mu.Lock()
	defer k.pulls.mu.Unlock()
	if f := k.pulls.fails[pullKey{pod.UID, image}]; f != nil {
		return f.delay.cur - time.Since(f.delay.last)
	}
	return 0
}

// forgetPull lets an image be tried again at once.
func (k *Kubelet) forgetPull(uid types.UID, image string) {
	k.pulls.mu.Lock()
	defer k.pulls.mu.Unlock()
	delete(k.pulls.fails, pullKey{uid, image})
}

func (k *Kubelet) forgetPulls(uid types.UID) {
	k.pulls.mu.Lock()
	defer k.pulls.mu.Unlock()
	maps.DeleteFunc(k.pulls.fails, func(key pullKey, _ *pullFail) bool { return key.pod == uid })
}
