package framework

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"knarr/internal/csimigration"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	features "k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// A Shape is all of a pod that matters to where it may run. Pods made from one
// template have one shape, parsed once.
type Shape struct {
	Key string
	// Local names what local plugins look at: shapes that have it in common
	// get the same answers. It is a digest, because it outlives the shape, and
	// one that nobody finds two pods for.
	Local     [sha256.Size]byte
	Namespace string
	Labels    labels.Set
	Priority  int32
	// Spec is the spec of the first pod that had the shape.
	Spec *corev1.PodSpec
	// Owner is the controller's kind and name.
	Owner metav1.OwnerReference
	// Asks is what the pod requests of resources that some node has, Nowhere of
	// others; ScoreCPU and ScoreMemory are what scoring
	// takes it to use.
	Asks                  Resources
	Nowhere               []Amount
	ScoreCPU, ScoreMemory int64
	Ports                 []Port
	Images                []string
	Containers            int
	Claims                []string
	Inline                []InlineVolume // volumes that it names itself, and a driver has taken over
	Disks                 []Disk         // volumes that it names itself, and shares with few
	// Needs are the features of a node that the pod makes use of.
	Needs features.FeatureSet

	NodeAffinity  nodeaffinity.RequiredNodeAffinity
	NodePreferred *nodeaffinity.PreferredSchedulingTerms

	// Only names the nodes the pod may run on at all, nil for any. Pods of
	// daemons are made for one node each.
	Only []string

	// Affinity and AntiAffinity are the required terms, Preferred all others
	// with their weight, negative for those against.
	Affinity, AntiAffinity []*Term
	Preferred              []WeightedTerm
	Spread                 []corev1.TopologySpreadConstraint

	// Err is why the pod cannot be understood.
	Err error
	// Siblings selects the pods of the same Services and controller, as of a
	// revision of those.
	Siblings         labels.Selector
	SiblingsRevision uint64
	// Spreading is what PodTopologySpread made of that.
	Spreading         any
	SpreadingRevision uint64

	refs     int
	placed   []*Pod
	tallies  cached[*Tally]
	matching cached[*Owners]
}

// A Port is one taken on the node's addresses.
type Port struct {
	IP       string
	Protocol corev1.Protocol
	Number   int32
}

// A WeightedTerm is a wish to be near (or, negative, far from) others.
type WeightedTerm struct {
	*Term
	Weight int64
}

type cached[T any] struct {
	revision uint64
	list     []T
}

// shapeKey writes down everything a Shape is made of, and says how much of it
// is all that local plugins look at.
func shapeKey(b []byte, pod *corev1.Pod, asks Resources, more []Amount, cpu, memory int64) (key []byte, local int) {
	str := func(s string) { b = binary.AppendUvarint(b, uint64(len(s))); b = append(b, s...) }
	num := func(n int64) { b = binary.AppendVarint(b, n) }
	labelSet := func(m map[string]string) {
		num(int64(len(m)))
		var few [16]string
		keys := few[:0]
		for k := range m {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		for _, k := range keys {
			str(k)
			str(m[k])
		}
	}
	message := func(m interface{ Marshal() ([]byte, error) }) {
		raw, _ := m.Marshal()
		num(int64(len(raw)))
		b = append(b, raw...)
	}
	spec := &pod.Spec
	// First what local plugins look at.
	for _, a := range asks {
		num(a)
	}
	num(int64(len(more)))
	for _, a := range more {
		str(string(a.Name))
		num(a.Much)
	}
	num(cpu)
	num(memory)
	str(spec.NodeName)
	labelSet(spec.NodeSelector)
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		message(spec.Affinity.NodeAffinity)
	} else {
		num(0)
	}
	num(int64(len(spec.Tolerations)))
	for i := range spec.Tolerations {
		message(&spec.Tolerations[i])
	}
	for _, cs := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range cs {
			for _, p := range cs[i].Ports {
				if p.HostPort > 0 {
					num(int64(p.HostPort))
					str(p.HostIP)
					str(string(p.Protocol))
				}
			}
		}
		num(0)
	}
	str(needsKey(spec))
	local = len(b)
	str(pod.Namespace)
	labelSet(pod.Labels)
	num(int64(priority(pod)))
	if a := spec.Affinity; a != nil {
		if a.PodAffinity != nil {
			message(a.PodAffinity)
		} else {
			num(0)
		}
		if a.PodAntiAffinity != nil {
			message(a.PodAntiAffinity)
		} else {
			num(0)
		}
	}
	num(int64(len(spec.TopologySpreadConstraints)))
	for i := range spec.TopologySpreadConstraints {
		message(&spec.TopologySpreadConstraints[i])
	}
	for _, cs := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		num(int64(len(cs)))
		for i := range cs {
			str(cs[i].Image)
			if p := cs[i].RestartPolicy; p != nil {
				str(string(*p))
			}
		}
	}
	for i := range spec.Volumes {
		if kind, key := volumeKey(pod, &spec.Volumes[i]); kind != "" {
			str(kind)
			str(key)
		}
	}
	if ref := metav1.GetControllerOf(pod); ref != nil {
		str(ref.Kind)
		str(ref.Name)
	}
	return b, local
}

// volumeKey is a volume's part of a shape's key; "" if it does not matter.
func volumeKey(pod *corev1.Pod, v *corev1.Volume) (kind, key string) {
	switch name := ClaimName(pod, v); {
	case v.Image != nil:
		return "image", v.Image.Reference
	case name != "":
		return "claim", name
	case IsNamed(v):
		raw, _ := v.Marshal()
		return "named", string(raw)
	}
	return "", ""
}

// ClaimName is the name of the PersistentVolumeClaim behind a volume, or empty.
func ClaimName(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return pod.Name + "-" + v.Name
	}
	return ""
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority
	}
	return 0
}

// newShape parses the pod.
func newShape(key string, local [sha256.Size]byte, pod *corev1.Pod, asks Resources, more []Amount, cpu, memory int64) *Shape {
	spec := &pod.Spec
	s := &Shape{
		Key: key, Local: local, Namespace: pod.Namespace, Labels: maps.Clone(pod.Labels), Priority: priority(pod), Spec: spec,
		Asks: asks, Nowhere: more, ScoreCPU: cpu, ScoreMemory: memory,
		Containers:   len(spec.Containers) + len(spec.InitContainers),
		NodeAffinity: nodeaffinity.GetRequiredNodeAffinity(pod),
		Spread:       spec.TopologySpreadConstraints,
		Needs:        needs(spec),
	}
	if ref := metav1.GetControllerOf(pod); ref != nil {
		s.Owner = *ref
	}
	for _, c := range spec.InitContainers {
		s.Images = append(s.Images, imageName(c.Image))
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			s.addPorts(c.Ports)
		}
	}
	for _, c := range spec.Containers {
		s.Images = append(s.Images, imageName(c.Image))
		s.addPorts(c.Ports)
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if v.Image != nil {
			s.Images = append(s.Images, imageName(v.Image.Reference))
		}
		if name := ClaimName(pod, v); name != "" {
			s.Claims = append(s.Claims, name)
		}
		if pv, err := csimigration.Inline(v, pod.Namespace); err == nil && pv != nil && pv.Spec.CSI != nil {
			s.Inline = append(s.Inline, InlineVolume{pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle, csimigration.InlinePlugin(v)})
		}
		s.Disks = append(s.Disks, disksOf(v)...)
	}
	if a := spec.Affinity; a != nil {
		s.parseAffinity(a)
	}
	return s
}

func (s *Shape) addPorts(ports []corev1.ContainerPort) {
	for _, p := range ports {
		if p.HostPort <= 0 {
			continue
		}
		proto := p.Protocol
		if proto == "" {
			proto = corev1.ProtocolTCP
		}
		ip := p.HostIP
		if ip == "" {
			ip = "0.0.0.0"
		}
		s.Ports = append(s.Ports, Port{ip, proto, p.HostPort})
	}
}

func (s *Shape) parseAffinity(a *corev1.Affinity) {
	required := func(list []corev1.PodAffinityTerm) (terms []*Term) {
		for i := range list {
			t, err := newTerm(s.Namespace, &list[i])
			if err != nil {
				s.Err = err
				return nil
			}
			terms = append(terms, t)
		}
		return terms
	}
	preferred := func(list []corev1.WeightedPodAffinityTerm, sign int64) {
		for i := range list {
			t, err := newTerm(s.Namespace, &list[i].PodAffinityTerm)
			if err != nil {
				s.Err = err
				return
			}
			s.Preferred = append(s.Preferred, WeightedTerm{t, sign * int64(list[i].Weight)})
		}
	}
	if n := a.NodeAffinity; n != nil && len(n.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		terms, err := nodeaffinity.NewPreferredSchedulingTerms(n.PreferredDuringSchedulingIgnoredDuringExecution)
		if err != nil {
			s.Err = err
		}
		s.NodePreferred = terms
	}
	if n := a.NodeAffinity; n != nil && n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		s.Only = namedNodes(n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms)
	}
	if p := a.PodAffinity; p != nil {
		s.Affinity = required(p.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred(p.PreferredDuringSchedulingIgnoredDuringExecution, 1)
	}
	if p := a.PodAntiAffinity; p != nil {
		s.AntiAffinity = required(p.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred(p.PreferredDuringSchedulingIgnoredDuringExecution, -1)
	}
}

// imageName is the image as a node's status would name it.
func imageName(name string) string {
	if strings.LastIndexByte(name, ':') <= strings.LastIndexByte(name, '/') {
		return name + ":latest"
	}
	return name
}

// namedNodes are the nodes that terms name, nil if a term names none.
func namedNodes(terms []corev1.NodeSelectorTerm) []string {
	var all []string
	for i := range terms {
		var names []string
		for _, f := range terms[i].MatchFields {
			if f.Key == metav1.ObjectNameField && f.Operator == corev1.NodeSelectorOpIn {
				if names == nil {
					names = append([]string{}, f.Values...)
				} else {
					names = slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(f.Values, n) })
				}
			}
		}
		if names == nil {
			return nil
		}
		all = append(all, names...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
