package csi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"knarr/node/kubelet/volume"
)

var _ volume.Driver = (*Manager)(nil)

// callTime bounds one call to a driver.
const callTime = 2 * time.Minute

func (m *Manager) driver(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// lock keeps calls about one volume apart. A driver that hangs holds up that
// volume alone.
func (m *Manager) lock(ctx context.Context, handle string) (unlock func(), err error) {
	for {
		m.mu.Lock()
		held := m.locks[handle]
		if held == nil {
			held = make(chan struct{})
			m.locks[handle] = held
			m.mu.Unlock()
			return func() {
				m.mu.Lock()
				delete(m.locks, handle)
				m.mu.Unlock()
				close(held)
			}, nil
		}
		m.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another call about volume %s: %w", handle, ctx.Err())
		}
	}
}

func (m *Manager) secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := m.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(s.Data))
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

// Mount stages the volume on the node if its driver wants so, and publishes it
// at target. What is noted is noted first, so that nothing a driver has done
// is forgotten, whatever fails between.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod, spec volume.Spec, target string, unowned func() error) error {
	ctx = withMigrated(ctx, spec.Migrated)
	r, err := parse(pod, spec)
	if err != nil {
		return err
	}
	d, err := m.driver(r.driver)
	if err != nil {
		return err
	}
	about, err := m.about(ctx, r.driver)
	if err != nil {
		return err
	}
	if err := permits(r, about); err != nil {
		return err
	}
	rec, err := m.prepare(ctx, &r, spec.Name, about, filepath.Dir(target))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	unlock, err := m.lock(ctx, r.handle)
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := note(filepath.Dir(target), rec); err != nil {
		return err
	}
	group := d.groupOf(pod)
	if d.stage && !r.ephemeral {
		if err := m.stage(ctx, d, r, rec.Attach, capabilityOf(r, d, group)); err != nil {
			return &volume.StepError{Step: "MountVolume.MountDevice failed", Err: err}
		}
	}
	req, err := m.publication(ctx, d, pod, r, about, target)
	if err != nil {
		return err
	}
	if !r.readOnly && group == "" && ownable(r, about) {
		if err := unowned(); err != nil {
			return err
		}
	}
	_, err = d.node.NodePublishVolume(ctx, req)
	return err
}

// groupOf is the pod's group, if the driver gives volumes to groups itself.
func (d *driver) groupOf(pod *corev1.Pod) string {
	if sc := pod.Spec.SecurityContext; d.group && sc != nil && sc.FSGroup != nil {
		return strconv.FormatInt(*sc.FSGroup, 10)
	}
	return ""
}

// publication is what is asked of a driver to make a volume appear at target.
func (m *Manager) publication(ctx context.Context, d *driver, pod *corev1.Pod, r request, about *storagev1.CSIDriver, target string) (*csipb.NodePublishVolumeRequest, error) {
	secrets, err := m.secret(ctx, r.pubSecret)
	if err != nil {
		return nil, err
	}
	req := &csipb.NodePublishVolumeRequest{
		VolumeId: r.handle, PublishContext: r.context, TargetPath: target, VolumeCapability: capabilityOf(r, d, d.groupOf(pod)),
		Readonly: r.readOnly, Secrets: secrets, VolumeContext: volumeContext(pod, r, about),
	}
	if d.stage && !r.ephemeral {
		req.StagingTargetPath = m.stagingPath(r)
	}
	tokens, err := m.tokens(ctx, pod, about)
	if err != nil || tokens == "" {
		return req, err
	}
	if in := about.Spec.ServiceAccountTokenInSecrets; in == nil || !*in {
		req.VolumeContext[tokensKey] = tokens
		return req, nil
	}
	if req.Secrets == nil {
		req.Secrets = map[string]string{}
	}
	req.Secrets[tokensKey] = tokens
	return req, nil
}

// about is what the cluster knows of a driver: nothing, if nobody has said.
func (m *Manager) about(ctx context.Context, driver string) (*storagev1.CSIDriver, error) {
	about, err := m.Client.StorageV1().CSIDrivers().Get(ctx, driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &storagev1.CSIDriver{}, nil
	}
	return about, err
}

// prepare waits until a volume is attached that has to be, and gives the record
// to keep of it in the directory dir.
func (m *Manager) prepare(ctx context.Context, r *request, name string, about *storagev1.CSIDriver, dir string) (rec record, err error) {
	rec = record{SpecVolID: name, Handle: r.handle, Driver: r.driver, Node: m.NodeName, Lifecycle: string(r.lifecycle()), Migrated: r.migrated}
	if r.ephemeral {
		return rec, nil
	}
	rec.Attachment = attachmentName(r.handle, r.driver, m.NodeName)
	if !attachRequired(about) {
		m.detachable(about, dir) // at the last try it may have been otherwise
		rec.Attach = notAttached
		return rec, nil
	}
	began := time.Now()
	r.context, err = m.waitAttached(ctx, rec, dir)
	m.did(volume.OpAttached, rec, began, err)
	if err != nil {
		err = &volume.StepError{Step: "MountVolume.WaitForAttach failed", Err: err}
	}
	return rec, err
}

func (m *Manager) stagingDir(driver, handle string) string {
	return filepath.Join(m.RootDir, "plugins", "kubernetes.io", "csi", driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))))
}

// stagingPath is where a volume is staged.
func (m *Manager) stagingPath(r request) string {
	if r.block {
		return m.blockStaging(r.pv)
	}
	return filepath.Join(m.stagingDir(r.driver, r.handle), "globalmount")
}

// stage makes a volume ready on the node. Its record is kept first.
func (m *Manager) stage(ctx context.Context, d *driver, r request, attach string, capability *csipb.VolumeCapability) error {
	path := m.stagingPath(r)
	secrets, err := m.secret(ctx, r.stageSecret)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if !r.block { // that of a block device is kept elsewhere, as upstream does it
		if err := note(filepath.Dir(path), record{Handle: r.handle, Driver: r.driver, Attach: attach, Migrated: r.migrated}); err != nil {
			return err
		}
	}
	// What is staged there already is not asked: it may hang.
	fresh := true
	if err := os.Mkdir(path, 0o750); os.IsExist(err) {
		fresh = false
	} else if err != nil {
		return err
	}
	_, err = d.node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: r.handle, PublishContext: r.context, StagingTargetPath: path, VolumeCapability: capability, Secrets: secrets, VolumeContext: r.attributes,
	})
	if err != nil && fresh {
		if _, final := finality(err); final {
			m.notStaged(r, path)
		}
	}
	return err
}

// notStaged forgets a volume whose driver said for certain that it staged nothing,
// and was not asked before: there is nothing to unstage then.
func (m *Manager) notStaged(r request, path string) {
	if os.Remove(path) != nil || r.block { // what the driver put there stays noted
		return
	}
	dir := filepath.Dir(path)
	_ = os.Remove(filepath.Join(dir, recordFile))
	_ = os.Remove(dir)
}

// volumeContext is what the driver is told of the volume and, if it wants to
// know, of the pod.
func volumeContext(pod *corev1.Pod, r request, about *storagev1.CSIDriver) map[string]string {
	out := maps.Clone(r.attributes)
	if out == nil {
		out = map[string]string{}
	}
	if p := about.Spec.PodInfoOnMount; p != nil && *p {
		out["csi.storage.k8s.io/pod.name"] = pod.Name
		out["csi.storage.k8s.io/pod.namespace"] = pod.Namespace
		out["csi.storage.k8s.io/pod.uid"] = string(pod.UID)
		out["csi.storage.k8s.io/serviceAccount.name"] = pod.Spec.ServiceAccountName
		out["csi.storage.k8s.io/ephemeral"] = strconv.FormatBool(r.ephemeral)
	}
	return out
}

const tokensKey = "csi.storage.k8s.io/serviceAccount.tokens"

// tokens are those of the pod's service account that the driver wants, as JSON;
// "" if it wants none.
func (m *Manager) tokens(ctx context.Context, pod *corev1.Pod, about *storagev1.CSIDriver) (string, error) {
	if len(about.Spec.TokenRequests) == 0 || m.Token == nil {
		return "", nil
	}
	tokens := map[string]map[string]string{}
	for _, t := range about.Spec.TokenRequests {
		token, expires, err := m.Token(ctx, pod, t.Audience, t.ExpirationSeconds)
		if err != nil {
			return "", err
		}
		tokens[t.Audience] = map[string]string{"token": token, "expirationTimestamp": expires.UTC().Format(time.RFC3339)}
	}
	b, err := json.Marshal(tokens)
	return string(b), err
}
