package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"knarr/node/kubelet/pullrecords"
	"knarr/node/kubelet/tracing"
)

const imageGCPeriod = 5 * time.Minute

// imageUse remembers when images were first seen and last used.
type imageUse struct {
	mu  sync.Mutex
	all map[string]*imageRecord
	// dir is where the runtime keeps images, layers where containers' own files are; ""
	// until it has answered.
	dir, layers string
}

type imageRecord struct {
	seen, used time.Time
	size       uint64
	pinned     bool
}

// collectImages removes unused images when their disk is full.
func (k *Kubelet) collectImages(ctx context.Context) {
	if !k.waitRuntime(ctx) {
		return
	}
	for failed := false; ; {
		err := k.detectImages(ctx)
		if err == nil {
			err = errors.Join(k.collectOldImages(ctx, time.Now()), k.imageGC(ctx))
		}
		if err != nil && ctx.Err() == nil {
			slog.Warn("remove unused images", "err", err)
			if failed { // once may be before what is measured is known
				k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "ImageGCFailed", err.Error())
			}
		}
		failed = err != nil
		if !sleep(ctx, imageGCPeriod) {
			return
		}
	}
}

// detectImages brings what is remembered of images up to date.
func (k *Kubelet) detectImages(ctx context.Context) error {
	began := time.Now()
	images, err := k.images.ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return err
	}
	containers, err := k.runtime.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return err
	}
	if err := k.checkRecords(images.Images, began); err != nil {
		slog.Warn("check the records of pulls", "err", err)
	}
	// What containers run and what is mounted into them, by ids and by names.
	inUse := map[string]bool{}
	for _, c := range containers.Containers {
		inUse[c.ImageId], inUse[c.ImageRef], inUse[c.Image.GetImage()] = true, true, true
	}
	for _, w := range k.all() {
		for _, c := range w.shown.Load().observed.Containers {
			for _, m := range c.Mounts {
				inUse[m.GetImage().GetImage()] = true // "" is no image's
			}
		}
	}
	now := time.Now()
	k.imageUse.mu.Lock()
	defer k.imageUse.mu.Unlock()
	next := map[string]*imageRecord{}
	for _, i := range images.Images {
		if i.Id == "" {
			k.events.Eventf(k.nodeRef(), corev1.EventTypeWarning, "InvalidImageID", "ImageID is not valid, skipping, image: %v", i)
			continue
		}
		r := k.imageUse.all[i.Id]
		if r == nil {
			r = &imageRecord{seen: now}
		}
		r.size, r.pinned = i.Size, i.Pinned
		used := inUse[i.Id]
		for _, n := range slices.Concat(i.RepoTags, i.RepoDigests) {
			used = used || inUse[n]
		}
		if used {
			r.used = now
		}
		next[i.Id] = r
	}
	k.imageUse.all = next
	return nil
}

// checkRecords forgets who pulled images that are gone, and takes note of those
// whose pull an earlier run of the kubelet did not see end. The images were
// listed after began.
func (k *Kubelet) checkRecords(all []*cri.Image, began time.Time) error {
	images, ids := make([]pullrecords.Image, len(all)), make([]string, len(all))
	for i, o := range all {
		images[i], ids[i] = pullrecords.Image{ID: o.Id, Names: slices.Concat(o.RepoTags, o.RepoDigests)}, o.Id
	}
	return errors.Join(k.records.Recover(images), k.records.Prune(ids, began))
}

// imageGC frees the image disk down to the low threshold once it is above the
// high one. A high one of 100 switches it off, but, as upstream has it, not where
// images go for their age: 100 is then a threshold as any other.
func (k *Kubelet) imageGC(ctx context.Context) error {
	if *k.cfg.Settings.ImageGCHighThresholdPercent == 100 && k.cfg.Settings.ImageMaximumGCAge.Duration == 0 {
		return nil
	}
	ctx, span := k.tracer.Start(ctx, tracing.OfKubelet, "Images/GarbageCollect", tracing.Internal)
	defer span.End()
	d, err := k.statDisk(k.imageDir())
	if err != nil {
		return err
	}
	if d.size == 0 {
		err := errors.New("invalid capacity 0 on image filesystem")
		k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "InvalidDiskCapacity", err.Error())
		return err
	}
	percent := int(100 - d.free*100/d.size)
	if percent < int(*k.cfg.Settings.ImageGCHighThresholdPercent) {
		return nil
	}
	want := d.size*uint64(100-*k.cfg.Settings.ImageGCLowThresholdPercent)/100 - d.free
	freed, err := k.freeImages(ctx, want, time.Now())
	if err != nil {
		return err
	}
	if freed < want {
		err := fmt.Errorf("Insufficient free disk space on the node's image filesystem (%d%% of %s used). Failed to free sufficient space by deleting unused images (freed %d bytes). "+ //nolint:staticcheck // upstream's words
			"Investigate disk usage, as it could be used by active images, logs, volumes, or other data.", percent, sizeText(d.size), freed)
		k.events.Event(k.nodeRef(), corev1.EventTypeWarning, "FreeDiskSpaceFailed", err.Error())
		return err
	}
	return nil
}

// sizeText writes a number of bytes as people read it.
func sizeText(bytes uint64) string {
	if bytes < 1<<10 {
		return fmt.Sprintf("%d B", bytes)
	}
	size, unit := float64(bytes)/(1<<10), "KiB"
	for _, next := range []string{"MiB", "GiB", "TiB"} {
		if size < 1<<10 {
			break
		}
		size, unit = size/(1<<10), next
	}
	return fmt.Sprintf("%.1f %s", size, unit)
}

// unusedImages are those that may go, the longest unused first: they have been there for so
// long, and nobody has used them since, or for so long either.
func unusedImages(all map[string]*imageRecord, now time.Time, there, unused time.Duration) (ids []string) {
	for id, r := range all {
		if !r.pinned && r.used.Before(now) && now.Sub(r.seen) >= there && now.Sub(r.used) >= unused {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b string) int {
		x, y := all[a], all[b]
		if c := x.used.Compare(y.used); c != 0 {
			return c
		}
		return x.seen.Compare(y.seen)
	})
	return ids
}

// collectOldImages removes images that nobody has used for so long that they are not to
// stay, whatever room there is. One that was never used counts from when it was seen.
func (k *Kubelet) collectOldImages(ctx context.Context, now time.Time) error {
	most := k.cfg.Settings.ImageMaximumGCAge.Duration
	if most == 0 {
		return nil
	}
	k.imageUse.mu.Lock()
	ids := unusedImages(k.imageUse.all, now, most, most)
	k.imageUse.mu.Unlock()
	_, err := k.removeImages(ctx, ids, math.MaxUint64, "age")
	return err
}

func (k *Kubelet) freeImages(ctx context.Context, want uint64, now time.Time) (freed uint64, err error) {
	if err := k.detectImages(ctx); err != nil {
		return 0, err
	}
	k.imageUse.mu.Lock()
	ids := unusedImages(k.imageUse.all, now, k.cfg.Settings.ImageMinimumGCAge.Duration, 0)
	k.imageUse.mu.Unlock()
	return k.removeImages(ctx, ids, want, "space")
}

// removeImages removes images until so many bytes are free.
func (k *Kubelet) removeImages(ctx context.Context, ids []string, want uint64, why string) (freed uint64, err error) {
	sizes := map[string]uint64{}
	k.imageUse.mu.Lock()
	for _, id := range ids {
		if r := k.imageUse.all[id]; r != nil {
			sizes[id] = r.size
		}
	}
	k.imageUse.mu.Unlock()
	var errs []error
	for _, id := range ids {
		if freed >= want {
			break
		}
		if _, err := k.images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: id}}); err != nil {
			errs = append(errs, err)
			continue
		}
		k.metrics.imagesRemoved.WithLabelValues(why).Inc()
		slog.Info("removed unused image", "image", id, "bytes", sizes[id])
		freed += sizes[id]
	}
	return freed, errors.Join(errs...)
}
