package kubelet

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/podspec"
)

const (
	// imagePoll is how often the runtime is asked for images that pods wait for
	// where it does not report changes.
	imagePoll = 2 * time.Second
	// After a change the images are looked at so many times, first at once and
	// then after ever longer: the runtime shows an image a little after telling.
	imageLooks     = 7
	imageLookFirst = 25 * time.Millisecond
	// imagesPerLook bounds the images that are looked for at a time, any of those
	// that pods name; what is left out comes at another time or by its own pull.
	imagesPerLook = 64
)

// imageWaits are the pods that wait for images to come by another way than
// their own pull. While there are none, images are not listed.
type imageWaits struct {
	mu sync.Mutex
	// pods has for each image a pod waits for the id that was reported present.
	pods map[types.UID]map[string]string
	// denied has for each pod the images that were present when it wanted them,
	// but not for its credentials.
	denied map[types.UID]map[string]string
	wake   chan struct{}
}

func newImageWaits() *imageWaits {
	return &imageWaits{pods: map[types.UID]map[string]string{}, denied: map[types.UID]map[string]string{}, wake: make(chan struct{}, 1)}
}

// deny notes that an image is present as id, but not for that pod.
func (s *imageWaits) deny(uid types.UID, image, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.denied[uid] == nil {
		s.denied[uid] = map[string]string{}
	}
	s.denied[uid][image] = id
}

// set says what images a pod waits for. What was reported of one stays known
// until it waits no more for it: an image that is present but not for this pod
// is no reason to try again and again.
func (s *imageWaits) set(uid types.UID, images []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.pods[uid]
	if len(images) == 0 {
		delete(s.pods, uid)
		delete(s.denied, uid)
		return
	}
	next := make(map[string]string, len(images))
	for _, i := range images {
		next[i] = have[i]
	}
	s.pods[uid] = next
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// images are all that anybody waits for.
func (s *imageWaits) images() (out []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]bool{}
	for _, m := range s.pods {
		for i := range m {
			all[i] = true
		}
	}
	for i := range all { // in any order, which is another each time
		out = append(out, i)
	}
	return out
}

// came are the pods that wait for an image and do not know yet that it is
// present as id.
func (s *imageWaits) came(image, id string) (uids []types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for uid, m := range s.pods {
		if known, waits := m[image]; waits && known != id && s.denied[uid][image] != id {
			m[image] = id
			uids = append(uids, uid)
		}
	}
	return uids
}

// followImages lets pods that wait for an image try again when it has come.
func (k *Kubelet) followImages(ctx context.Context) {
	changed := k.cfg.ImagesChanged
	timer := time.NewTimer(0)
	defer timer.Stop()
	looks := 0
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-changed:
			if !open {
				changed = nil // from now on it must be asked for
			}
			looks = imageLooks
		case <-k.imageWaits.wake:
			looks = max(looks, 1) // it may have come while its pull failed
		case <-timer.C:
		}
		images := k.imageWaits.images()
		if len(images) == 0 {
			looks = 0
			timer.Stop()
			continue
		}
		for _, image := range images[:min(len(images), imagesPerLook)] {
			k.lookForImage(ctx, image)
		}
		looks = max(looks-1, 0)
		switch {
		case looks > 0:
			timer.Reset(imageLookFirst << (imageLooks - 1 - looks))
		case changed == nil:
			timer.Reset(imagePoll)
		default:
			timer.Stop()
		}
	}
}

func (k *Kubelet) lookForImage(ctx context.Context, image string) {
	res, err := k.images.ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: withTag(image)}})
	if err != nil || res.Image == nil {
		return
	}
	for _, uid := range k.imageWaits.came(image, res.Image.Id) {
		if w := k.worker(uid); w != nil {
			w.imageCame(image)
		}
	}
}

// imageCame reports to the worker that an image it waits for is present.
func (w *worker) imageCame(image string) {
	w.inbox.Lock()
	w.inbox.images = append(w.inbox.images, image)
	w.inbox.Unlock()
	w.poke()
}

// retryImages lets the containers start that waited for these images.
func (w *worker) retryImages(images []string) {
	for _, image := range images {
		w.k.forgetPull(w.uid, image)
		for name, c := range w.containers {
			if isImageWait(c.waiting.reason) && slices.Contains(w.imagesOf(name), image) {
				w.retryNow(opKey{kind: opStart, of: name})
			}
		}
	}
}

// awaitImages says which images the pod waits for.
func (w *worker) awaitImages() {
	var images []string
	if w.ended == nil {
		for name, c := range w.containers {
			if isImageWait(c.waiting.reason) {
				images = append(images, w.imagesOf(name)...)
			}
		}
		slices.Sort(images)
		images = slices.Compact(images)
	}
	if !slices.Equal(images, w.awaited) {
		w.awaited = images
		w.k.imageWaits.set(w.uid, images)
	}
}

// imagesOf are the images that a container can use once they are present.
func (w *worker) imagesOf(name string) (out []string) {
	c, _ := podspec.FindContainer(w.pod, name)
	if c == nil {
		return nil
	}
	add := func(image string, policy corev1.PullPolicy) {
		if image != "" && pullPolicy(image, policy) != corev1.PullAlways {
			out = append(out, image)
		}
	}
	add(c.Image, c.ImagePullPolicy)
	for _, m := range c.VolumeMounts {
		for i := range w.pod.Spec.Volumes {
			if v := &w.pod.Spec.Volumes[i]; v.Name == m.Name && v.Image != nil {
				add(v.Image.Reference, v.Image.PullPolicy)
			}
		}
	}
	return out
}

// pullPolicy is the policy an image is pulled by if none is given.
func pullPolicy(image string, policy corev1.PullPolicy) corev1.PullPolicy {
	switch {
	case policy != "":
		return policy
	case strings.HasSuffix(withTag(image), ":latest"):
		return corev1.PullAlways
	}
	return corev1.PullIfNotPresent
}
