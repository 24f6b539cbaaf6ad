package policyfile

import (
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// signature is what changes when the file does, up to the granularity of its times. The change time is in it because
// the modification time can be set back (cp -p, rsync, tar).
type signature struct {
	device, inode uint64
	size          int64
	mtime, ctime  int64 // nanoseconds since 1970
}

// granularity is how long after a change the file can change again without another signature. Linux stamps files with
// the time of the last timer tick, at most 10 ms ago; file systems that keep no fraction of a second keep one or two
// seconds (FAT).
func (s signature) granularity() time.Duration {
	if s.mtime%1e9 == 0 && s.ctime%1e9 == 0 {
		return 2100 * time.Millisecond
	}
	return 100 * time.Millisecond
}

func statFile(f *os.File) (s signature, err error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return s, err
	}
	if controlErr := raw.Control(func(fd uintptr) { s, err = statAt(int(fd), "", f.Name(), false) }); controlErr != nil {
		return s, controlErr
	}
	return s, err
}

// statAt asks for the status of path below dir, or of dir itself, past the caches of a network file system
// (AT_STATX_FORCE_SYNC in statx(2)). Links are followed. Anything but a regular file that still has a name is an
// error, errNameless for one that has none any more. On a local file system the call waits for nobody, and goes past the
// scheduler's book-keeping: it is made for each connection, on the goroutine that serves them all.
func statAt(dir int, path, name string, local bool) (signature, error) {
	var st unix.Statx_t
	statx := unix.Statx
	if local {
		statx = statxAtOnce
	}
	err := statx(dir, path, unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st)
	if err == unix.ENOSYS || err == unix.EPERM { // an old seccomp filter that does not know statx
		var old unix.Stat_t
		err = unix.Fstatat(dir, path, &old, unix.AT_EMPTY_PATH)
		st.Mode, st.Nlink, st.Ino, st.Size = uint16(old.Mode), uint32(old.Nlink), old.Ino, uint64(old.Size)
		st.Dev_major, st.Dev_minor = unix.Major(old.Dev), unix.Minor(old.Dev)
		st.Mtime.Sec, st.Mtime.Nsec = old.Mtim.Sec, uint32(old.Mtim.Nsec)
		st.Ctime.Sec, st.Ctime.Nsec = old.Ctim.Sec, uint32(old.Ctim.Nsec)
	}
	if err != nil {
		return signature{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return signature{}, fmt.Errorf("%s is not a regular file", name)
	}
	if st.Nlink == 0 {
		return signature{}, errNameless
	}
	return signature{
		device: unix.Mkdev(st.Dev_major, st.Dev_minor),
		inode:  st.Ino,
		size:   int64(st.Size),
		mtime:  st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec),
		ctime:  st.Ctime.Sec*1e9 + int64(st.Ctime.Nsec),
	}, nil
}

func statxAtOnce(dir int, path string, flags, mask int, st *unix.Statx_t) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	_, _, errno := unix.RawSyscall6(unix.SYS_STATX, uintptr(dir), uintptr(unsafe.Pointer(p)), uintptr(flags), uintptr(mask),
		uintptr(unsafe.Pointer(st)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// local lists the file systems on which inotify sees every writer. Elsewhere a writer may be on another machine (NFS,
// 9p, FUSE), or may write to a copy that is not watched (overlay).
var local = []int64{unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC,
	unix.F2FS_SUPER_MAGIC, unix.BCACHEFS_SUPER_MAGIC, 0x2fc12fc1 /* ZFS */}

func isLocal(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && slices.Contains(local, int64(st.Type))
}
