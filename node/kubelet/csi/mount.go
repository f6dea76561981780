package csi

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
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

// A record is what is noted beside a volume, under upstream's keys.
type record struct {
	SpecVolID  string `json:"specVolID,omitempty"`
	Handle     string `json:"volumeHandle"`
	Driver     string `json:"driverName"`
	Node       string `json:"nodeName,omitempty"`
	Attachment string `json:"attachmentID,omitempty"`
	Lifecycle  string `json:"volumeLifecycleMode,omitempty"`
}

const recordFile = "vol_data.json"

func (m *Manager) driver(name string) (*driver, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if d := m.drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("driver name %s not found in the list of registered CSI drivers", name)
}

// lock keeps calls about one volume apart.
func (m *Manager) lock(handle string) func() {
	h := fnv.New32a()
	_, _ = h.Write([]byte(handle))
	l := &m.locks[h.Sum32()%uint32(len(m.locks))]
	l.Lock()
	return l.Unlock
}

// A request is a volume taken apart.
type request struct {
	driver, handle, fsType string
	context                map[string]string
	attributes             map[string]string
	options                []string
	stageSecret, pubSecret *corev1.SecretReference
	modes                  []corev1.PersistentVolumeAccessMode
	readOnly, ephemeral    bool
}

func parse(pod *corev1.Pod, s volume.Spec) (r request, err error) {
	switch {
	case s.Inline != nil:
		sum := sha256.Sum256([]byte(pod.Namespace + string(pod.UID) + s.Name))
		r = request{driver: s.Inline.Driver, handle: fmt.Sprintf("csi-%x", sum), attributes: s.Inline.VolumeAttributes, readOnly: s.ReadOnly, ephemeral: true,
			modes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}}
		if s.Inline.FSType != nil {
			r.fsType = *s.Inline.FSType
		}
		if ref := s.Inline.NodePublishSecretRef; ref != nil {
			r.pubSecret = &corev1.SecretReference{Namespace: pod.Namespace, Name: ref.Name}
		}
	case s.PV != nil && s.PV.Spec.CSI != nil:
		c := s.PV.Spec.CSI
		r = request{driver: c.Driver, handle: c.VolumeHandle, fsType: c.FSType, attributes: c.VolumeAttributes, options: s.PV.Spec.MountOptions,
			stageSecret: c.NodeStageSecretRef, pubSecret: c.NodePublishSecretRef, modes: s.PV.Spec.AccessModes, readOnly: s.ReadOnly}
	default:
		return r, errors.New("not a CSI volume")
	}
	return r, nil
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
// at target.
func (m *Manager) Mount(ctx context.Context, pod *corev1.Pod, spec volume.Spec, target string) error {
	r, err := parse(pod, spec)
	if err != nil {
		return err
	}
	d, err := m.driver(r.driver)
	if err != nil {
		return err
	}
	defer m.lock(r.handle)()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	about, err := m.Client.StorageV1().CSIDrivers().Get(ctx, r.driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		about = &storagev1.CSIDriver{}
	} else if err != nil {
		return err
	}
	rec := record{SpecVolID: spec.Name, Handle: r.handle, Driver: r.driver, Node: m.NodeName, Lifecycle: string(storagev1.VolumeLifecyclePersistent)}
	if r.ephemeral {
		rec.Lifecycle = string(storagev1.VolumeLifecycleEphemeral)
	} else {
		rec.Attachment = attachmentName(r.handle, r.driver, m.NodeName)
		if about.Spec.AttachRequired == nil || *about.Spec.AttachRequired {
			if r.context, err = m.attached(ctx, rec.Attachment); err != nil {
				return err
			}
		}
	}
	group := ""
	if sc := pod.Spec.SecurityContext; d.group && sc != nil && sc.FSGroup != nil {
		group = strconv.FormatInt(*sc.FSGroup, 10)
	}
	capability := capabilityOf(r, group)
	staging := ""
	if d.stage && !r.ephemeral {
		if staging, err = m.stage(ctx, d, r, capability); err != nil {
			return err
		}
	}
	volContext, err := m.volumeContext(ctx, pod, r, about)
	if err != nil {
		return err
	}
	secrets, err := m.secret(ctx, r.pubSecret)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	if err := note(filepath.Dir(target), rec); err != nil {
		return err
	}
	_, err = d.node.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{
		VolumeId: r.handle, PublishContext: r.context, StagingTargetPath: staging, TargetPath: target,
		VolumeCapability: capability, Readonly: r.readOnly, Secrets: secrets, VolumeContext: volContext,
	})
	if err != nil {
		return err
	}
	if !r.readOnly && group == "" && ownable(r, about) {
		return volume.Own(pod, target)
	}
	return nil
}

// ownable says whether the pod's group may be given the volume's files.
func ownable(r request, about *storagev1.CSIDriver) bool {
	p := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if about.Spec.FSGroupPolicy != nil {
		p = *about.Spec.FSGroupPolicy
	}
	switch p {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	return r.fsType != "" && len(r.modes) == 1 && r.modes[0] == corev1.ReadWriteOnce
}

func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// attached gives what attaching has brought; an error while it has not.
func (m *Manager) attached(ctx context.Context, name string) (map[string]string, error) {
	a, err := m.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("volume is not attached yet: %w", err)
	}
	if !a.Status.Attached {
		if a.Status.AttachError != nil {
			return nil, fmt.Errorf("volume cannot be attached: %s", a.Status.AttachError.Message)
		}
		return nil, fmt.Errorf("volume is not attached yet: VolumeAttachment %s", name)
	}
	return a.Status.AttachmentMetadata, nil
}

func (m *Manager) stagingDir(driver, handle string) string {
	return filepath.Join(m.RootDir, "plugins", "kubernetes.io", "csi", driver, fmt.Sprintf("%x", sha256.Sum256([]byte(handle))))
}

func (m *Manager) stage(ctx context.Context, d *driver, r request, capability *csipb.VolumeCapability) (string, error) {
	dir := m.stagingDir(r.driver, r.handle)
	path := filepath.Join(dir, "globalmount")
	secrets, err := m.secret(ctx, r.stageSecret)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return "", err
	}
	if err := note(dir, record{Handle: r.handle, Driver: r.driver}); err != nil {
		return "", err
	}
	_, err = d.node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: r.handle, PublishContext: r.context, StagingTargetPath: path, VolumeCapability: capability, Secrets: secrets, VolumeContext: r.attributes,
	})
	return path, err
}

func capabilityOf(r request, group string) *csipb.VolumeCapability {
	mode := csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
	for _, a := range r.modes {
		switch a {
		case corev1.ReadWriteMany:
			mode = csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		case corev1.ReadOnlyMany:
			if mode == csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER {
				mode = csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
			}
		}
		if a == corev1.ReadWriteMany {
			break
		}
	}
	return &csipb.VolumeCapability{
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{FsType: r.fsType, MountFlags: r.options, VolumeMountGroup: group}},
	}
}

// volumeContext adds what the driver wants to know of the pod.
func (m *Manager) volumeContext(ctx context.Context, pod *corev1.Pod, r request, about *storagev1.CSIDriver) (map[string]string, error) {
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
	if len(about.Spec.TokenRequests) == 0 || m.Token == nil {
		return out, nil
	}
	tokens := map[string]map[string]string{}
	for _, t := range about.Spec.TokenRequests {
		token, refresh, err := m.Token(ctx, pod, t.Audience, t.ExpirationSeconds)
		if err != nil {
			return nil, err
		}
		tokens[t.Audience] = map[string]string{"token": token, "expirationTimestamp": refresh.UTC().Format(time.RFC3339)}
	}
	b, err := json.Marshal(tokens)
	if err != nil {
		return nil, err
	}
	out["csi.storage.k8s.io/serviceAccount.tokens"] = string(b)
	return out, nil
}

func note(dir string, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, recordFile), b, 0o600)
}

func noted(dir string) (r record, err error) {
	b, err := os.ReadFile(filepath.Join(dir, recordFile))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(b, &r)
}

// Unmount takes a published volume back, and off the node if no other pod
// uses it.
func (m *Manager) Unmount(ctx context.Context, target string) error {
	dir := filepath.Dir(target)
	r, err := noted(dir)
	if os.IsNotExist(err) {
		return nil // never published
	}
	if err != nil {
		return err
	}
	d, err := m.driver(r.Driver)
	if err != nil {
		return err
	}
	defer m.lock(r.Handle)()
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	if _, err := d.node.NodeUnpublishVolume(ctx, &csipb.NodeUnpublishVolumeRequest{VolumeId: r.Handle, TargetPath: target}); err != nil {
		return fmt.Errorf("unpublish volume %s: %w", r.Handle, err)
	}
	if err := os.RemoveAll(filepath.Join(dir, recordFile)); err != nil {
		return err
	}
	_ = os.Remove(target)
	if !d.stage || r.Lifecycle == string(storagev1.VolumeLifecycleEphemeral) || m.used(r) {
		return nil
	}
	staging := m.stagingDir(r.Driver, r.Handle)
	path := filepath.Join(staging, "globalmount")
	if _, err := d.node.NodeUnstageVolume(ctx, &csipb.NodeUnstageVolumeRequest{VolumeId: r.Handle, StagingTargetPath: path}); err != nil {
		return fmt.Errorf("unstage volume %s: %w", r.Handle, err)
	}
	_ = os.Remove(path) // not what may still be in it
	_ = os.Remove(filepath.Join(staging, recordFile))
	_ = os.Remove(staging)
	return nil
}

// used says whether a pod of this node still has the volume.
func (m *Manager) used(r record) bool {
	all, _ := filepath.Glob(filepath.Join(m.RootDir, "pods", "*", "volumes", "kubernetes.io~csi", "*", recordFile))
	for _, f := range all {
		if o, err := noted(filepath.Dir(f)); err == nil && o.Handle == r.Handle && o.Driver == r.Driver {
			return true
		}
	}
	return false
}

// MapDevice is not served.
func (m *Manager) MapDevice(context.Context, *corev1.Pod, volume.Spec) (string, error) {
	return "", errors.New("block volumes of CSI drivers are not supported")
}
