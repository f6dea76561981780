package registry

import (
	"net"
	"path"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateHostPath(h *corev1.HostPathVolumeSource, at *field.Path) field.ErrorList {
	if h.Path == "" {
		return field.ErrorList{field.Required(at.Child("path"), "")}
	}
	errs := noBacksteps(h.Path, at.Child("path"))
	if h.Type != nil {
		errs = append(errs, oneOf(*h.Type, at.Child("type"), corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate,
			corev1.HostPathDirectory, corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket,
			corev1.HostPathCharDev, corev1.HostPathBlockDev)...)
	}
	return errs
}

func validateNFS(n *corev1.NFSVolumeSource, at *field.Path) field.ErrorList {
	var f faults
	if n.Server == "" {
		f.required(at.Child("server"), "")
	}
	if n.Path == "" {
		f.required(at.Child("path"), "")
	}
	if !path.IsAbs(n.Path) {
		f.invalid(at.Child("path"), n.Path, "must be an absolute path")
	}
	return f.list
}

func csiDriverName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	var f faults
	if len(name) > 63 {
		f.list = append(f.list, field.TooLong(at, "", 63))
	}
	f.add(invalid(utilvalidation.IsDNS1123Subdomain(strings.ToLower(name)), name, at))
	return f.list
}

func needed(at *field.Path, names []string, values ...string) (errs field.ErrorList) {
	for i, value := range values {
		if value == "" {
			errs = append(errs, field.Required(at.Child(names[i]), ""))
		}
	}
	return errs
}

func validateFlocker(s *corev1.FlockerVolumeSource, at *field.Path) field.ErrorList {
	var f faults
	if s.DatasetName == "" && s.DatasetUUID == "" {
		f.required(at, "one of datasetName and datasetUUID is required")
	}
	if s.DatasetName != "" && s.DatasetUUID != "" {
		f.invalid(at, "resource", "datasetName and datasetUUID can not be specified simultaneously")
	}
	if strings.Contains(s.DatasetName, "/") {
		f.invalid(at.Child("datasetName"), s.DatasetName, "must not contain '/'")
	}
	return f.list
}

func validateStorageOS(name, namespace string, at *field.Path) field.ErrorList {
	f := faults{list: needed(at, []string{"volumeName"}, name)}
	if name != "" {
		f.add(dnsLabel(name, at.Child("volumeName")))
	}
	if namespace != "" {
		f.add(dnsLabel(namespace, at.Child("volumeNamespace")))
	}
	return f.list
}

func validateAzureDisk(d *corev1.AzureDiskVolumeSource, at *field.Path) field.ErrorList {
	f := faults{list: needed(at, []string{"diskName", "diskURI"}, d.DiskName, d.DataDiskURI)}
	if d.CachingMode != nil {
		among(&f, *d.CachingMode, at.Child("cachingMode"), corev1.AzureDataDiskCachingNone, corev1.AzureDataDiskCachingReadOnly, corev1.AzureDataDiskCachingReadWrite)
	}
	if d.Kind == nil {
		return f.list
	}
	among(&f, *d.Kind, at.Child("kind"), corev1.AzureDedicatedBlobDisk, corev1.AzureManagedDisk, corev1.AzureSharedBlobDisk)
	start, shape := "https://", "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd"
	if *d.Kind == corev1.AzureManagedDisk {
		start, shape = "/subscriptions/", "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}"
	}
	if !strings.HasPrefix(d.DataDiskURI, start) {
		f.list = append(f.list, field.NotSupported(at.Child("diskURI"), d.DataDiskURI, []string{shape}))
	}
	return f.list
}

func validateQuobyte(q *corev1.QuobyteVolumeSource, at *field.Path) field.ErrorList {
	const pairs = "must be a host:port pair or multiple pairs separated by commas"
	var f faults
	switch {
	case q.Registry == "":
		f.required(at.Child("registry"), pairs)
	case len(q.Tenant) > 64:
		f.required(at.Child("tenant"), "must be a UUID and may not exceed a length of 64 characters")
	default:
		for pair := range strings.SplitSeq(q.Registry, ",") {
			if _, _, err := net.SplitHostPort(pair); err != nil {
				f.invalid(at.Child("registry"), q.Registry, pairs)
			}
		}
	}
	f.add(needed(at, []string{"volume"}, q.Volume))
	return f.list
}

func someMonitors(monitors []string, at *field.Path) field.ErrorList {
	if len(monitors) == 0 {
		return field.ErrorList{field.Required(at.Child("monitors"), "")}
	}
	return nil
}

func validatePartitioned(part, id string, partition int32, at *field.Path) field.ErrorList {
	errs := needed(at, []string{part}, id)
	if partition < 0 || partition > 255 {
		errs = append(errs, field.Invalid(at.Child("partition"), partition, utilvalidation.InclusiveRangeError(0, 255)))
	}
	return errs
}

var iscsiNames = map[string]*regexp.Regexp{
	"iqn": regexp.MustCompile(`iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)$`),
	"eui": regexp.MustCompile(`^eui.[[:alnum:]]{16}$`),
	"naa": regexp.MustCompile(`^naa.[[:alnum:]]{32}$`),
}

func iscsiName(name string, at *field.Path) field.ErrorList {
	for prefix, valid := range iscsiNames {
		if strings.HasPrefix(name, prefix) {
			if valid.MatchString(name) {
				return nil
			}
			return field.ErrorList{field.Invalid(at, name, "must be valid format")}
		}
	}
	return field.ErrorList{field.Invalid(at, name, "must be valid format starting with iqn, eui, or naa")}
}

func validateISCSI(portal, iqn string, lun int32, secretMissing bool, initiator *string, at *field.Path) field.ErrorList {
	var f faults
	if portal == "" {
		f.required(at.Child("targetPortal"), "")
	}
	if iqn == "" {
		f.required(at.Child("iqn"), "")
	} else {
		f.add(iscsiName(iqn, at.Child("iqn")))
	}
	if lun < 0 || lun > 255 {
		f.invalid(at.Child("lun"), lun, utilvalidation.InclusiveRangeError(0, 255))
	}
	if secretMissing {
		f.required(at.Child("secretRef"), "")
	}
	if initiator != nil {
		f.add(iscsiName(*initiator, at.Child("initiatorname")))
	}
	return f.list
}

func validateFC(s *corev1.FCVolumeSource, at *field.Path) field.ErrorList {
	var f faults
	if len(s.TargetWWNs) == 0 && len(s.WWIDs) == 0 {
		f.required(at.Child("targetWWNs"), "must specify either targetWWNs or wwids, but not both")
	}
	if len(s.TargetWWNs) > 0 && len(s.WWIDs) > 0 {
		f.invalid(at.Child("targetWWNs"), s.TargetWWNs, "targetWWNs and wwids can not be specified simultaneously")
	}
	if len(s.TargetWWNs) > 0 {
		if s.Lun == nil {
			f.required(at.Child("lun"), "lun is required if targetWWNs is specified")
		} else if *s.Lun < 0 || *s.Lun > 255 {
			f.invalid(at.Child("lun"), s.Lun, utilvalidation.InclusiveRangeError(0, 255))
		}
	}
	return f.list
}

func validateFlex(driver string, options map[string]string, at *field.Path) field.ErrorList {
	errs := needed(at, []string{"driver"}, driver)
	for _, k := range sortedKeys(options) {
		namespace, _, _ := strings.Cut(k, "/")
		if n := "." + strings.ToLower(namespace); strings.HasSuffix(n, ".kubernetes.io") || strings.HasSuffix(n, ".k8s.io") {
			errs = append(errs, field.Invalid(at.Child("options").Key(k), k, "kubernetes.io and k8s.io namespaces are reserved"))
		}
	}
	return errs
}
