package registry

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateNode(_ context.Context, n, old *corev1.Node) field.ErrorList           { return nil }
func validateNodeUpdate(_ context.Context, n, old *corev1.Node) field.ErrorList     { return nil }
func validateEndpoints(_ context.Context, n, old *corev1.Endpoints) field.ErrorList { return nil }
func validatePod(_ context.Context, n, old *corev1.Pod) field.ErrorList             { return nil }
func validateEphemeralUpdate(_ context.Context, n, old *corev1.Pod) field.ErrorList { return nil }
func validateResize(_ context.Context, n, old *corev1.Pod) field.ErrorList          { return nil }
func validatePodStatusUpdate(_ context.Context, n, old *corev1.Pod) field.ErrorList { return nil }
func warnPodSpec(s *corev1.PodSpec, m *metav1.ObjectMeta, at *field.Path) []string  { return nil }
func warnTemplate(t *corev1.PodTemplateSpec, at *field.Path) []string               { return nil }
func warnJobSpec(t *batchv1.JobSpec, at *field.Path) []string                       { return nil }
func warnOldLabel(key string, at *field.Path) []string                              { return nil }
func warnService(s *corev1.Service) []string                                        { return nil }

var specTemplate = field.NewPath("spec", "template")

func validateTemplate(t, old *corev1.PodTemplateSpec, at *field.Path) field.ErrorList { return nil }
func validateService(_ context.Context, n, old *corev1.Service) field.ErrorList       { return nil }
func validateServiceStatus(_ context.Context, n, old *corev1.Service) field.ErrorList { return nil }
func validateDeployment(_ context.Context, n, old *appsv1.Deployment) field.ErrorList { return nil }
func validateDeploymentStatus(_ context.Context, n, old *appsv1.Deployment) field.ErrorList {
	return nil
}
func validateReplicaSet(_ context.Context, n, old *appsv1.ReplicaSet) field.ErrorList { return nil }
func validateReplicaSetStatus(_ context.Context, n, old *appsv1.ReplicaSet) field.ErrorList {
	return nil
}
func validateDaemonSet(_ context.Context, n, old *appsv1.DaemonSet) field.ErrorList       { return nil }
func validateDaemonSetStatus(_ context.Context, n, old *appsv1.DaemonSet) field.ErrorList { return nil }
func validateStatefulSet(_ context.Context, n, old *appsv1.StatefulSet) field.ErrorList   { return nil }
func validateStatefulSetStatus(_ context.Context, n, old *appsv1.StatefulSet) field.ErrorList {
	return nil
}
func validateReplicationController(_ context.Context, n, old *corev1.ReplicationController) field.ErrorList {
	return nil
}
func validateReplicationControllerStatus(_ context.Context, n, old *corev1.ReplicationController) field.ErrorList {
	return nil
}
func validateLimitRange(_ context.Context, n, old *corev1.LimitRange) field.ErrorList { return nil }
func validateResourceQuota(_ context.Context, n, old *corev1.ResourceQuota) field.ErrorList {
	return nil
}
func validateResourceQuotaStatus(_ context.Context, n, old *corev1.ResourceQuota) field.ErrorList {
	return nil
}
func validatePersistentVolume(_ context.Context, n, old *corev1.PersistentVolume) field.ErrorList {
	return nil
}
func validateClaim(_ context.Context, n, old *corev1.PersistentVolumeClaim) field.ErrorList {
	return nil
}
func validateClaimStatus(_ context.Context, n, old *corev1.PersistentVolumeClaim) field.ErrorList {
	return nil
}
func validateLease(_ context.Context, n, old *coordinationv1.Lease) field.ErrorList { return nil }
func validateAutoscaler(_ context.Context, n, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	return nil
}
func validateAutoscalerStatus(_ context.Context, n, old *autoscalingv2.HorizontalPodAutoscaler) field.ErrorList {
	return nil
}
func validateJob(_ context.Context, n, old *batchv1.Job) field.ErrorList         { return nil }
func validateJobStatus(_ context.Context, n, old *batchv1.Job) field.ErrorList   { return nil }
func validateCronJob(_ context.Context, n, old *batchv1.CronJob) field.ErrorList { return nil }
func validateDisruptionBudget(_ context.Context, n, old *policyv1.PodDisruptionBudget) field.ErrorList {
	return nil
}
func validateDisruptionBudgetStatus(_ context.Context, n, old *policyv1.PodDisruptionBudget) field.ErrorList {
	return nil
}
func validateIngress(_ context.Context, n, old *networkingv1.Ingress) field.ErrorList { return nil }
func validateIngressStatus(_ context.Context, n, old *networkingv1.Ingress) field.ErrorList {
	return nil
}
func validateIngressClass(_ context.Context, n, old *networkingv1.IngressClass) field.ErrorList {
	return nil
}
func validateNetworkPolicy(_ context.Context, n, old *networkingv1.NetworkPolicy) field.ErrorList {
	return nil
}
func validateSigningRequest(_ context.Context, n, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return nil
}
func validateRequestApproval(_ context.Context, n, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return nil
}
func validateRequestStatus(_ context.Context, n, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return nil
}
func validateStorageClass(_ context.Context, n, old *storagev1.StorageClass) field.ErrorList {
	return nil
}
func validateCSINode(_ context.Context, n, old *storagev1.CSINode) field.ErrorList     { return nil }
func validateCSIDriver(_ context.Context, n, old *storagev1.CSIDriver) field.ErrorList { return nil }
func validateVolumeAttachment(_ context.Context, n, old *storagev1.VolumeAttachment) field.ErrorList {
	return nil
}
func validateRuntimeClass(n *nodev1.RuntimeClass) field.ErrorList { return nil }
func validateEndpointSlice(_ context.Context, n, old *discoveryv1.EndpointSlice) field.ErrorList {
	return nil
}
