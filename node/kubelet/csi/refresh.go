package csi

import (
	"context"
	"fmt"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"knarr/node/kubelet/volume"
)

// Refresh does what a published volume needs from time to time: the driver is
// asked again where it wants that, and grows the volume where its claim was
// granted more. fresh says that no container has the volume yet.
func (m *Manager) Refresh(ctx context.Context, pod *corev1.Pod, spec volume.Spec, path string, fresh bool) error {
	ctx = withMigrated(ctx, spec.Migrated)
	if !fresh && !spec.Block {
		if err := m.republish(ctx, pod, spec, path); err != nil {
			return err
		}
	}
	err := m.expand(ctx, pod, spec, path, fresh)
	switch {
	case err == nil:
		return nil
	case fresh:
		return &volume.StepError{Step: "MountVolume.Setup failed while expanding volume", Err: err}
	case m.Event != nil: // the pod goes on with what it has
		m.Event(pod, corev1.EventTypeWarning, "VolumeResizeFailed", fmt.Sprintf("NodeExpandVolume.NodeExpandVolume failed for volume %q : %v", spec.Name, err))
	}
	return nil
}

// republish publishes a volume once more, with fresh tokens, if its driver wants
// that.
func (m *Manager) republish(ctx context.Context, pod *corev1.Pod, spec volume.Spec, target string) error {
	r, err := parse(pod, spec)
	if err != nil {
		return err
	}
	about, err := m.about(ctx, r.driver)
	if err != nil {
		return err
	}
	m.detachable(about, filepath.Dir(target))
	if again := about.Spec.RequiresRepublish; again == nil || !*again {
		return nil
	}
	d, err := m.driver(r.driver)
	if err != nil {
		return err
	}
	if !r.ephemeral && attachRequired(about) {
		rec := record{Handle: r.handle, Attachment: attachmentName(r.handle, r.driver, m.NodeName)}
		if r.context, err = m.attached(ctx, rec); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	unlock, err := m.lock(ctx, r.handle)
	if err != nil {
		return err
	}
	defer unlock()
	req, err := m.publication(ctx, d, pod, r, about, target)
	if err != nil {
		return err
	}
	_, err = d.node.NodePublishVolume(ctx, req)
	return err
}
