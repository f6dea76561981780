package plugin

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"sort"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/admission"
	"knarr/controlplane/apiserver/authz"
	"knarr/controlplane/apiserver/registry"
	"knarr/controlplane/apiserver/watchcache"
)

// nodeRestriction limits what a kubelet may write to its own node, its devices,
// the pods bound to it, and tokens of their accounts.
type nodeRestriction struct {
	cache      *watchcache.Cache
	authorizer authz.Authorizer
}

func (*nodeRestriction) Name() string { return "NodeRestriction" }

func (n *nodeRestriction) Admit(ctx context.Context, a *admission.Attributes) error {
	if a.User == nil {
		return nil
	}
	node, isNode := authz.NodeName(a.User.GetName(), a.User.GetGroups())
	if !isNode {
		return nil
	}
	err := n.admit(ctx, node, a)
	if err == nil || apierrors.IsNotFound(err) {
		return err
	}
	return forbidden(a, err)
}

func (n *nodeRestriction) admit(ctx context.Context, node string, a *admission.Attributes) error {
	if node == "" {
		return fmt.Errorf("could not determine node from user %q", a.User.GetName())
	}
	switch a.Resource.GroupResource() {
	case corev1.Resource("pods"):
		return n.pod(ctx, node, a)
	case corev1.Resource("nodes"):
		return ownNode(node, a)
	case corev1.Resource("persistentvolumeclaims"):
		return claimStatus(node, a)
	case corev1.Resource("serviceaccounts"):
		if a.Operation == admission.Create && a.Subresource == "token" {
			return n.token(ctx, node, a)
		}
	case schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}:
		if a.Namespace != corev1.NamespaceNodeLease {
			return fmt.Errorf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
		}
		if a.Name != node {
			return fmt.Errorf("can only access node lease with the same name as the requesting node")
		}
	case schema.GroupResource{Group: "storage.k8s.io", Resource: "csinodes"}:
		if a.Name != node {
			return fmt.Errorf("can only access CSINode with the same name as the requesting node")
		}
	case schema.GroupResource{Group: resourcev1.GroupName, Resource: "resourceslices"}:
		return ownSlice(node, a)
	case certificatesv1beta1.Resource("podcertificaterequests"):
		return n.podCertificate(ctx, node, a)
	case certificatesv1.Resource("certificatesigningrequests"):
		return ownCertificate(node, a)
	}
	return nil
}

func (n *nodeRestriction) stored(ctx context.Context, a *admission.Attributes, name string) (*corev1.Pod, error) {
	return lookup[*corev1.Pod](ctx, n.cache, corev1.SchemeGroupVersion.WithResource("pods"), a.Namespace+"/"+name, name)
}

func (n *nodeRestriction) pod(ctx context.Context, node string, a *admission.Attributes) error {
	switch a.Subresource {
	case "":
		switch a.Operation {
		case admission.Create:
			return n.mirrorPod(ctx, node, a)
		case admission.Delete:
			pod, ok := a.Old.(*corev1.Pod)
			if !ok {
				var err error
				if pod, err = n.stored(ctx, a, a.Name); err != nil {
					return err
				}
			}
			if pod.Spec.NodeName != node {
				return fmt.Errorf("node %q can only delete pods with spec.nodeName set to itself", node)
			}
			return nil
		}
		return fmt.Errorf("unexpected operation %q, node %q can only create and delete mirror pods", a.Operation, node)
	case "status":
		return podStatus(node, a)
	case "eviction":
		if a.Operation != admission.Create {
			return fmt.Errorf("unexpected operation %s", a.Operation)
		}
		if a.Name == "" {
			return fmt.Errorf("could not determine pod from request data")
		}
		pod, err := n.stored(ctx, a, a.Name)
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != node {
			return fmt.Errorf("node %s can only evict pods with spec.nodeName set to itself", node)
		}
		return nil
	}
	return fmt.Errorf("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.Subresource)
}

func podStatus(node string, a *admission.Attributes) error {
	if a.Operation != admission.Update {
		return fmt.Errorf("unexpected operation %q", a.Operation)
	}
	old, ok := a.Old.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Old)
	}
	if old.Spec.NodeName != node {
		return fmt.Errorf("node %q can only update pod status for pods with spec.nodeName set to itself", node)
	}
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	if !labels.Equals(old.Labels, pod.Labels) {
		return fmt.Errorf("node %q cannot update labels through pod status", node)
	}
	// CVE-2025-4563: a claim named here would let the node read it.
	if !equality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) {
		return fmt.Errorf("node %q cannot update resource claim statues", node)
	}
	if !equality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus) {
		return fmt.Errorf("node %q cannot update extended resource claim status", node)
	}
	return nil
}

// mirrorPod lets a kubelet show its static pods, which may use nothing that the
// node could not read by itself.
func (n *nodeRestriction) mirrorPod(ctx context.Context, node string, a *admission.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	if _, mirror := pod.Annotations[mirrorAnnotation]; !mirror {
		return fmt.Errorf("pod does not have %q annotation, node %q can only create mirror pods", mirrorAnnotation, node)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node %q can only create pods with spec.nodeName set to itself", node)
	}
	switch len(pod.OwnerReferences) {
	case 0:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case 1:
	default:
		return fmt.Errorf("node %q can only create pods with a single owner reference set to itself", node)
	}
	owner := &pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != node:
		return fmt.Errorf("node %q can only create pods with an owner reference set to itself", node)
	case owner.Controller == nil || !*owner.Controller:
		return fmt.Errorf("node %q can only create pods with a controller owner reference set to itself", node)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return fmt.Errorf("node %q must not set blockOwnerDeletion on an owner reference", node)
	}
	self, err := lookup[*corev1.Node](ctx, n.cache, corev1.SchemeGroupVersion.WithResource("nodes"), node, node)
	if err != nil {
		return err
	}
	if owner.UID != self.UID {
		return fmt.Errorf("node %s UID mismatch: expected %s got %s", node, owner.UID, self.UID)
	}
	what, err := referred(pod)
	if err != nil {
		return fmt.Errorf("error checking mirror pod for API references: %w", err)
	}
	if what != "" {
		return fmt.Errorf("node %q can not create pods that reference %s", node, what)
	}
	return nil
}

// referred names the first kind of API object that pod refers to, "" for none
// (CVE-2025-4563 and its like). What is not known to be free of them is refused.
func referred(pod *corev1.Pod) (string, error) {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts", nil
	}
	for range authz.PodSecrets(pod) {
		return "secrets", nil
	}
	for range authz.PodConfigMaps(pod) {
		return "configmaps", nil
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resourceclaims", nil
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.EmptyDir != nil, v.HostPath != nil, v.DownwardAPI != nil, v.Image != nil, v.NFS != nil, v.ISCSI != nil, v.FC != nil,
			v.GitRepo != nil, v.AWSElasticBlockStore != nil, v.AzureDisk != nil, v.CephFS != nil, v.Cinder != nil, v.FlexVolume != nil,
			v.Flocker != nil, v.GCEPersistentDisk != nil, v.PhotonPersistentDisk != nil, v.PortworxVolume != nil, v.Quobyte != nil,
			v.RBD != nil, v.ScaleIO != nil, v.StorageOS != nil, v.VsphereVolume != nil:
		case v.ConfigMap != nil:
			return "configmaps (via configmap volumes)", nil
		case v.Secret != nil:
			return "secrets (via secret volumes)", nil
		case v.CSI != nil:
			return "csidrivers (via CSI volumes)", nil
		case v.Glusterfs != nil:
			return "endpoints (via glusterFS volumes)", nil
		case v.PersistentVolumeClaim != nil:
			return "persistentvolumeclaims", nil
		case v.Ephemeral != nil:
			return "persistentvolumeclaims (via ephemeral volumes)", nil
		case v.AzureFile != nil:
			return "secrets (via azureFile volumes)", nil
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				switch {
				case s.ConfigMap != nil:
					return "configmaps (via projected volumes)", nil
				case s.Secret != nil:
					return "secrets (via projected volumes)", nil
				case s.ServiceAccountToken != nil:
					return "serviceaccounts (via projected volumes)", nil
				case s.ClusterTrustBundle != nil:
					return "clustertrustbundles", nil
				case s.PodCertificate != nil:
					return "podcertificates", nil
				case s.DownwardAPI == nil:
					return "", fmt.Errorf("unknown source for projected volume %q", v.Name)
				}
			}
		default:
			return "", fmt.Errorf("unknown volume type for volume  %q", v.Name)
		}
	}
	return "", nil
}

// ownNode checks a write of a Node; it sees the new object on a patch, too
// (CVE-2021-25735, CVE-2025-5187).
func ownNode(node string, a *admission.Attributes) error {
	if a.Name != node {
		return fmt.Errorf("node %q is not allowed to modify node %q", node, a.Name)
	}
	if a.Operation != admission.Create && a.Operation != admission.Update {
		return nil
	}
	obj, ok := a.Object.(*corev1.Node)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	if a.Operation == admission.Create {
		if obj.Spec.ConfigSource != nil {
			return fmt.Errorf("node %q is not allowed to create pods with a non-nil configSource", node)
		}
		if bad := forbiddenLabels(obj.Labels, nil); len(bad) > 0 {
			return fmt.Errorf("node %q is not allowed to set the following labels: %s", node, strings.Join(bad, ", "))
		}
		return nil
	}
	old, ok := a.Old.(*corev1.Node)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Old)
	}
	// Old kubelets drop the field on a status update.
	if obj.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(obj.Spec.ConfigSource, old.Spec.ConfigSource) {
		return fmt.Errorf("node %q is not allowed to update configSource to a new non-nil configSource", node)
	}
	if !equality.Semantic.DeepEqual(obj.Spec.Taints, old.Spec.Taints) {
		return fmt.Errorf("node %q is not allowed to modify taints", node)
	}
	if !equality.Semantic.DeepEqual(obj.OwnerReferences, old.OwnerReferences) {
		return fmt.Errorf("node %q is not allowed to modify ownerReferences", node)
	}
	if bad := forbiddenLabels(obj.Labels, old.Labels); len(bad) > 0 {
		return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	return nil
}

// forbiddenLabels are the labels that differ and are not a kubelet's to set.
func forbiddenLabels(now, before map[string]string) (bad []string) {
	check := func(a, b map[string]string) {
		for k, v := range a {
			if w, ok := b[k]; (!ok || v != w) && !ownLabel(k) && !slices.Contains(bad, k) {
				bad = append(bad, k)
			}
		}
	}
	check(now, before)
	check(before, now)
	sort.Strings(bad)
	return bad
}

// ownLabel reports whether a kubelet may set the label on its node: its own facts
// and anything outside the kubernetes.io namespaces.
func ownLabel(key string) bool {
	prefix, _, found := strings.Cut(key, "/")
	if !found {
		return true
	}
	in := func(domain string) bool { return prefix == domain || strings.HasSuffix(prefix, "."+domain) }
	if in(corev1.LabelNamespaceNodeRestriction) {
		return false
	}
	if !in("kubernetes.io") && !in("k8s.io") || in(corev1.LabelNamespaceSuffixKubelet) || in(corev1.LabelNamespaceSuffixNode) {
		return true
	}
	switch key {
	case corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
		corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
		corev1.LabelInstanceType, corev1.LabelInstanceTypeStable,
		corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch":
		return true
	}
	return false
}

// claimStatus lets a kubelet tell how far the growth of a volume has come.
func claimStatus(node string, a *admission.Attributes) error {
	if a.Subresource != "status" {
		return fmt.Errorf("may only update PVC status")
	}
	if a.Operation != admission.Update {
		return fmt.Errorf("unexpected operation %q", a.Operation)
	}
	old, ok := a.Old.(*corev1.PersistentVolumeClaim)
	obj, too := a.Object.(*corev1.PersistentVolumeClaim)
	if !ok || !too {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	bare := func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		c = c.DeepCopy()
		c.TypeMeta, c.ResourceVersion, c.ManagedFields = metav1.TypeMeta{}, "", nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResourceStatuses, c.Status.AllocatedResources = nil, nil
		return c
	}
	if was, now := bare(old), bare(obj); !equality.Semantic.DeepEqual(was, now) {
		return fmt.Errorf("node %q is not allowed to update fields other than status.quantity and status.conditions: %v", node, registry.Difference(was, now))
	}
	return nil
}

// ownSlice keeps a node from offering devices in another node's name, and from
// deleting another's in a collection. The authorizer sees to the other verbs; an
// update cannot change whose a slice is.
func ownSlice(node string, a *admission.Attributes) error {
	var obj any
	verb := ""
	switch a.Operation {
	case admission.Create:
		obj, verb = a.Object, "create"
	case admission.Delete:
		obj, verb = a.Old, "delete"
	default:
		return nil
	}
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return fmt.Errorf("unexpected type %T", obj)
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return fmt.Errorf("can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}

// ownCertificate keeps a node from asking for another node's certificate.
func ownCertificate(node string, a *admission.Attributes) error {
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if a.Operation != admission.Create || !ok ||
		csr.Spec.SignerName != certificatesv1.KubeletServingSignerName && csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return fmt.Errorf("unable to parse csr: PEM block type must be CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return fmt.Errorf("unable to parse csr: %w", err)
	}
	if req.Subject.CommonName != "system:node:"+node {
		return fmt.Errorf("can only create a node CSR with CN=system:node:%s", node)
	}
	return nil
}

// token lets a kubelet ask for tokens bound to pods that run on it, for the
// audiences that those pods name.
func (n *nodeRestriction) token(ctx context.Context, node string, a *admission.Attributes) error {
	req, ok := a.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return fmt.Errorf("unexpected type %T", a.Object)
	}
	ref := req.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return fmt.Errorf("node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return fmt.Errorf("node requested token with a pod binding without a uid")
	}
	pod, err := n.stored(ctx, a, ref.Name)
	if err != nil {
		return err
	}
	if pod.UID != ref.UID {
		return fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != node {
		return fmt.Errorf("node requested token bound to a pod scheduled on a different node")
	}
	return n.audience(ctx, req.Spec.Audiences, pod, a)
}
