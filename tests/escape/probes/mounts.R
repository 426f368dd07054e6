# Attempts on the barrier `mounts`. `attempts.R` is put before it.

shield("/usr/src")
commanded("/usr/sbin/chroot / true")
native(plain("mount", "umount2", "pivot_root", "chroot", "fsopen", "fsconfig", "fsmount", "fspick", "open_tree",
             "move_mount", "mount_setattr", "name_to_handle_at", "open_by_handle_at", "quotactl"))
attempt("dir.create", "EROFS", function() dir.create("/usr/src/probe"))
attempt("file.create", "EROFS", function() file.create("/usr/src/file"))
attempt("file.symlink", "EROFS", function() file.symlink("x", "/usr/src/link"))
opened("/usr/src/opened", "w", "EROFS")
opened("/etc/passwd", "r+", "EACCES")
opened("/usr/bin/env", "r+b", "EACCES")
opened("/etc/passwd", "w", "EROFS", "it would empty the host's")
attempt("file.remove", "EROFS", function() file.remove("/usr/bin/env"), "it would remove the host's")
attempt("file.rename", "EROFS", function() file.rename("/usr/bin/env", "/usr/bin/other"),
        "it would rename the host's")
for (path in c("/etc/shadow", "/etc/gshadow")) opened(path, "r", "ENOENT")
for (path in c("/root", "/home", "/var", "/srv", "/boot")) commanded(paste("ls", path), "ENOENT")
commanded("echo x > /usr/src/redirected", "EROFS")
