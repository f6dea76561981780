package registry

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A volumeSource is one of the fields of a volume of which one must be set.
type volumeSource struct {
	name    string
	surplus string // what upstream calls it where it says that it is one too many, if otherwise
	is      func(*corev1.Volume) bool
	check   func(c *podCheck, v *corev1.Volume, at *field.Path)
}

// volumeSources in upstream's order: of several the first is looked at.
var volumeSources = []volumeSource{
	{"emptyDir", "", func(v *corev1.Volume) bool { return v.EmptyDir != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		if l := v.EmptyDir.SizeLimit; l != nil && l.Cmp(resource.Quantity{}) < 0 {
			c.forbidden(at.Child("sizeLimit"), "SizeLimit field must be a valid resource quantity")
		}
	}},
	{"hostPath", "", func(v *corev1.Volume) bool { return v.HostPath != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) { c.add(validateHostPath(v.HostPath, at)) }},
	{"gitRepo", "", func(v *corev1.Volume) bool { return v.GitRepo != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		errs := needed(at, []string{"repository"}, v.GitRepo.Repository)
		c.add(append(errs, descendingPath(v.GitRepo.Directory, at.Child("directory"))...))
	}},
	{"persistentDisk", "gcePersistentDisk", func(v *corev1.Volume) bool { return v.GCEPersistentDisk != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(validatePartitioned("pdName", v.GCEPersistentDisk.PDName, v.GCEPersistentDisk.Partition, at))
	}},
	{"awsElasticBlockStore", "", func(v *corev1.Volume) bool { return v.AWSElasticBlockStore != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(validatePartitioned("volumeID", v.AWSElasticBlockStore.VolumeID, v.AWSElasticBlockStore.Partition, at))
	}},
	{"secret", "", func(v *corev1.Volume) bool { return v.Secret != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.need(v.Secret.SecretName, at, "secretName")
		c.fileMode(v.Secret.DefaultMode, at, "defaultMode")
		c.checkKeys(v.Secret.Items, at)
	}},
	{"nfs", "", func(v *corev1.Volume) bool { return v.NFS != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) { c.add(validateNFS(v.NFS, at)) }},
	{"iscsi", "", func(v *corev1.Volume) bool { return v.ISCSI != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		s := v.ISCSI
		c.add(validateISCSI(s.TargetPortal, s.IQN, s.Lun, (s.DiscoveryCHAPAuth || s.SessionCHAPAuth) && s.SecretRef == nil, s.InitiatorName, at))
	}},
	{"glusterfs", "", func(v *corev1.Volume) bool { return v.Glusterfs != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(needed(at, []string{"endpoints", "path"}, v.Glusterfs.EndpointsName, v.Glusterfs.Path))
	}},
	{"flocker", "", func(v *corev1.Volume) bool { return v.Flocker != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) { c.add(validateFlocker(v.Flocker, at)) }},
	{"persistentVolumeClaim", "", func(v *corev1.Volume) bool { return v.PersistentVolumeClaim != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.need(v.PersistentVolumeClaim.ClaimName, at, "claimName")
	}},
	{"rbd", "", func(v *corev1.Volume) bool { return v.RBD != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(append(someMonitors(v.RBD.CephMonitors, at), needed(at, []string{"image"}, v.RBD.RBDImage)...))
	}},
	{"cinder", "", func(v *corev1.Volume) bool { return v.Cinder != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		errs := needed(at, []string{"volumeID"}, v.Cinder.VolumeID)
		if v.Cinder.SecretRef != nil {
			errs = append(errs, needed(at.Child("secretRef"), []string{"name"}, v.Cinder.SecretRef.Name)...)
		}
		c.add(errs)
	}},
	{"cephfs", "cephFS", func(v *corev1.Volume) bool { return v.CephFS != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) { c.add(someMonitors(v.CephFS.Monitors, at)) }},
	{"quobyte", "", func(v *corev1.Volume) bool { return v.Quobyte != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(validateQuobyte(v.Quobyte, at))
	}},
	{"downwardAPI", "downwarAPI", func(v *corev1.Volume) bool { return v.DownwardAPI != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.fileMode(v.DownwardAPI.DefaultMode, at, "defaultMode")
		for i := range v.DownwardAPI.Items {
			c.checkDownwardFile(&v.DownwardAPI.Items[i], at)
		}
	}},
	{"fc", "", func(v *corev1.Volume) bool { return v.FC != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) { c.add(validateFC(v.FC, at)) }},
	{"flexVolume", "", func(v *corev1.Volume) bool { return v.FlexVolume != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(validateFlex(v.FlexVolume.Driver, v.FlexVolume.Options, at))
	}},
	{"configMap", "", func(v *corev1.Volume) bool { return v.ConfigMap != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.need(v.ConfigMap.Name, at, "name")
		c.fileMode(v.ConfigMap.DefaultMode, at, "defaultMode")
		c.checkKeys(v.ConfigMap.Items, at)
	}},
	{"azureFile", "", func(v *corev1.Volume) bool { return v.AzureFile != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(needed(at, []string{"secretName", "shareName"}, v.AzureFile.SecretName, v.AzureFile.ShareName))
	}},
	{"vsphereVolume", "", func(v *corev1.Volume) bool { return v.VsphereVolume != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(needed(at, []string{"volumePath"}, v.VsphereVolume.VolumePath))
	}},
	{"photonPersistentDisk", "", func(v *corev1.Volume) bool { return v.PhotonPersistentDisk != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(needed(at, []string{"pdID"}, v.PhotonPersistentDisk.PdID))
	}},
	{"portworxVolume", "", func(v *corev1.Volume) bool { return v.PortworxVolume != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(needed(at, []string{"volumeID"}, v.PortworxVolume.VolumeID))
	}},
	{"azureDisk", "", func(v *corev1.Volume) bool { return v.AzureDisk != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(validateAzureDisk(v.AzureDisk, at))
	}},
	{"storageos", "", func(v *corev1.Volume) bool { return v.StorageOS != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		errs := validateStorageOS(v.StorageOS.VolumeName, v.StorageOS.VolumeNamespace, at)
		if ref := v.StorageOS.SecretRef; ref != nil {
			errs = append(errs, needed(at.Child("secretRef"), []string{"name"}, ref.Name)...)
		}
		c.add(errs)
	}},
	{"projected", "", func(v *corev1.Volume) bool { return v.Projected != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.fileMode(v.Projected.DefaultMode, at, "defaultMode")
		c.checkProjections(v.Projected.Sources, at)
	}},
	{"scaleIO", "", func(v *corev1.Volume) bool { return v.ScaleIO != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		c.add(needed(at, []string{"gateway", "system", "volumeName"}, v.ScaleIO.Gateway, v.ScaleIO.System, v.ScaleIO.VolumeName))
	}},
	{"csi", "", func(v *corev1.Volume) bool { return v.CSI != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) { c.checkCSIVolume(v.CSI, at) }},
	{"ephemeral", "", func(v *corev1.Volume) bool { return v.Ephemeral != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) { c.checkEphemeralVolume(v, at) }},
	{"image", "", func(v *corev1.Volume) bool { return v.Image != nil }, func(c *podCheck, v *corev1.Volume, at *field.Path) {
		if c.isPod() && v.Image.Reference == "" {
			c.required(at.Child("reference"), "")
		}
		c.checkPullPolicy(v.Image.PullPolicy, at, "pullPolicy")
	}},
}
