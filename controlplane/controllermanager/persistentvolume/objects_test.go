package persistentvolume

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
)

// Objects are written as lines: "pv NAME SIZE PHASE", "pvc NAME SIZE PHASE" or
// "sc NAME PROVISIONER", then words key=value. The UID of a claim is its name
// with a u before it, unless uid says another. Annotations have short names.
var annotations = map[string]string{
	"controller":  volume.AnnBoundByController,
	"completed":   volume.AnnBindCompleted,
	"provisioned": volume.AnnDynamicallyProvisioned,
	"migrated":    volume.AnnMigratedTo,
	"node":        volume.AnnSelectedNode,
	"provisioner": volume.AnnStorageProvisioner,
	"beta":        volume.AnnBetaStorageProvisioner,
	"preresize":   preResizeCapacity,
	"default":     "storageclass.kubernetes.io/is-default-class",
}

var shortModes = map[string]corev1.PersistentVolumeAccessMode{"RWO": corev1.ReadWriteOnce, "ROX": corev1.ReadOnlyMany, "RWX": corev1.ReadWriteMany}

var finalizers = map[string]string{"own": volume.PVDeletionInTreeProtectionFinalizer, "external": volume.PVDeletionProtectionFinalizer}

// world is what an API server stores.
type world struct {
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	classes map[string]*storagev1.StorageClass
	pods    []string
	events  []string
}

type fields struct {
	kind, name, third, fourth string
	more                      map[string]string
}

func split(line string) (f fields) {
	words := strings.Fields(line)
	f = fields{kind: words[0], name: words[1], third: words[2], more: map[string]string{}}
	rest := words[3:]
	if f.kind != "sc" {
		f.fourth, rest = words[3], words[4:]
	}
	for _, w := range rest {
		key, value, _ := strings.Cut(w, "=")
		f.more[key] = value
	}
	return f
}

func (f fields) meta() metav1.ObjectMeta {
	m := metav1.ObjectMeta{Name: f.name, ResourceVersion: "1", CreationTimestamp: metav1.NewTime(time.Unix(1, 0))}
	for short, name := range annotations {
		if value, ok := f.more[short]; ok {
			metav1.SetMetaDataAnnotation(&m, name, value)
		}
	}
	if label, ok := f.more["label"]; ok {
		m.Labels = map[string]string{"l": label}
	}
	for name := range strings.SplitSeq(f.more["finalizers"], ",") {
		if name != "" {
			m.Finalizers = append(m.Finalizers, finalizers[name])
		}
	}
	if _, ok := f.more["deleting"]; ok {
		m.DeletionTimestamp = &metav1.Time{Time: time.Unix(2, 0)}
	}
	return m
}

func modes(text string) (all []corev1.PersistentVolumeAccessMode) {
	if text == "" {
		text = "RWO"
	}
	for m := range strings.SplitSeq(text, ",") {
		all = append(all, shortModes[m])
	}
	return all
}

func pointer[T ~string](f fields, key string) *T {
	if value, ok := f.more[key]; ok {
		return new(T(value))
	}
	return nil
}

func (f fields) volume() *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: f.meta(), Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(f.third)}, AccessModes: modes(f.more["modes"]),
		StorageClassName: f.more["class"], VolumeMode: pointer[corev1.PersistentVolumeMode](f, "mode"),
		VolumeAttributesClassName: pointer[string](f, "vac"), PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimPolicy(f.more["policy"]),
	}, Status: corev1.PersistentVolumeStatus{Phase: corev1.PersistentVolumePhase(f.fourth)}}
	v.UID = types.UID("u" + f.name)
	if ref, ok := f.more["claim"]; ok {
		name, uid, _ := strings.Cut(ref, "/")
		v.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "default", Name: name, UID: types.UID(uid)}
	}
	if path, ok := f.more["path"]; ok {
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: path}
	}
	if driver, ok := f.more["csi"]; ok {
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: driver}
	}
	return v
}

func (f fields) claim() *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: f.meta(), Spec: corev1.PersistentVolumeClaimSpec{
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(f.third)}},
		AccessModes: modes(f.more["modes"]), VolumeName: f.more["volume"], StorageClassName: pointer[string](f, "class"),
		VolumeMode: pointer[corev1.PersistentVolumeMode](f, "mode"), VolumeAttributesClassName: pointer[string](f, "vac"),
	}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.PersistentVolumeClaimPhase(f.fourth)}}
	c.Namespace, c.UID = "default", types.UID("u"+f.name)
	if uid, ok := f.more["uid"]; ok {
		c.UID = types.UID(uid)
	}
	if label, ok := f.more["select"]; ok {
		c.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"l": label}}
	}
	if _, ok := f.more["source"]; ok {
		c.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "VolumeSnapshot", Name: "s"}
	}
	if size, ok := f.more["has"]; ok {
		c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
		c.Status.AccessModes = c.Spec.AccessModes
	}
	c.Status.CurrentVolumeAttributesClassName = pointer[string](f, "vacnow")
	return c
}

func parse(t *testing.T, text string) *world {
	t.Helper()
	w := &world{claims: map[string]*corev1.PersistentVolumeClaim{}, volumes: map[string]*corev1.PersistentVolume{}, classes: map[string]*storagev1.StorageClass{}}
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) == "" {
			continue
		}
		switch f := split(line); f.kind {
		case "pv":
			w.volumes[f.name] = f.volume()
		case "pvc":
			w.claims[f.name] = f.claim()
		case "sc":
			mode := storagev1.VolumeBindingImmediate
			if _, ok := f.more["wait"]; ok {
				mode = storagev1.VolumeBindingWaitForFirstConsumer
			}
			class := &storagev1.StorageClass{ObjectMeta: f.meta(), Provisioner: f.third, VolumeBindingMode: &mode}
			if option, ok := f.more["mount"]; ok {
				class.MountOptions = []string{option}
			}
			w.classes[f.name] = class
		default:
			t.Fatalf("line %q", line)
		}
	}
	return w
}

// String is the world in the form that parse reads, classes left out.
func (w *world) String() string {
	var lines []string
	words := func(m metav1.ObjectMeta) (s string) {
		for _, short := range slices.Sorted(maps.Keys(annotations)) {
			if value, ok := m.Annotations[annotations[short]]; ok {
				s += " " + short + "=" + value
			}
		}
		var names []string
		for _, short := range slices.Sorted(maps.Keys(finalizers)) {
			if slices.Contains(m.Finalizers, finalizers[short]) {
				names = append(names, short)
			}
		}
		if names != nil {
			s += " finalizers=" + strings.Join(names, ",")
		}
		if m.DeletionTimestamp != nil {
			s += " deleting"
		}
		return s
	}
	optional := func(key string, value *string) string {
		if value == nil {
			return ""
		}
		return " " + key + "=" + *value
	}
	for _, v := range w.volumes {
		s := fmt.Sprintf("pv %s %s %s", v.Name, v.Spec.Capacity.Storage(), v.Status.Phase)
		if ref := v.Spec.ClaimRef; ref != nil {
			s += " claim=" + strings.TrimSuffix(ref.Name+"/"+string(ref.UID), "/")
		}
		lines = append(lines, s+words(v.ObjectMeta))
	}
	for _, c := range w.claims {
		s := fmt.Sprintf("pvc %s %s %s", c.Name, c.Spec.Resources.Requests.Storage(), c.Status.Phase) + optional("class", c.Spec.StorageClassName)
		if c.Spec.VolumeName != "" {
			s += " volume=" + c.Spec.VolumeName
		}
		if size, ok := c.Status.Capacity[corev1.ResourceStorage]; ok {
			s += " has=" + size.String()
		}
		lines = append(lines, s+optional("vacnow", c.Status.CurrentVolumeAttributesClassName)+words(c.ObjectMeta))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// sync takes the steps of one object, "pv NAME" or "pvc NAME", each from what is
// stored by then.
func (w *world) sync(t *testing.T, object string) (failed bool) {
	t.Helper()
	kind, name, _ := strings.Cut(object, " ")
	for range maxSteps {
		var s step
		if kind == "pv" {
			v := w.volumes[name]
			if v == nil {
				return false
			}
			view := &volumeView{volume: v}
			if ref := v.Spec.ClaimRef; ref != nil {
				if c := w.claims[ref.Name]; c != nil && c.UID == ref.UID {
					view.claim = c
				}
			}
			s = view.next()
		} else {
			s = w.claimView(t, w.claims[name]).next()
		}
		for _, e := range s.events {
			w.events = append(w.events, fmt.Sprintf("%s %s %s", e.kind, e.reason, e.message))
		}
		switch {
		case s.err != nil:
			return true
		case s.remove != nil:
			delete(w.volumes, s.remove.Name)
		case s.volume != nil:
			w.volumes[s.volume.Name] = s.volume
		case s.claim != nil:
			w.claims[s.claim.Name] = s.claim
		}
		if s.last || s.remove != nil {
			return false
		}
	}
	t.Errorf("%s: no end after %d steps", object, maxSteps)
	return false
}

func (w *world) claimView(t *testing.T, c *corev1.PersistentVolumeClaim) *claimView {
	t.Helper()
	v := &claimView{claim: c, class: w.classes[volume.GetPersistentVolumeClaimClass(c)], pods: w.pods,
		defaultClass: defaultOf(slices.Collect(maps.Values(w.classes)))}
	if c.Spec.VolumeName != "" {
		v.volume = w.volumes[c.Spec.VolumeName]
		return v
	}
	p := newPool()
	for _, v := range w.volumes {
		p.set(v)
	}
	found, err := p.find(c, delayed(v.class))
	if err != nil {
		t.Fatal(err)
	}
	v.volume = found
	return v
}
