! SPDX-License-Identifier: Apache-2.0 OR MIT
!
! cg_kernel.f90: conjugate gradients on a sparse symmetric matrix, as in NPB CG, with all arrays
! static, as Fortran programs have them.
! In: rows, a seed, iterations. Out: the norm of the residual, as the method has it and as it is.
! Knows nothing of the program around it.
module cg_kernel
    use, intrinsic :: iso_c_binding
    implicit none
    private
    ! 400,000 rows of 11 entries beside the diagonal: 54 MB of matrix, 16 MB of vectors. NPB's class
    ! A has 14,000 rows of 130 entries, whose vectors would stay in the caches.
    integer, parameter :: rows_max = 400000, pairs = 11
    real(c_double), save :: values(pairs, rows_max)
    integer(c_int32_t), save :: columns(pairs, rows_max)
    real(c_double), save :: solution(rows_max), direction(rows_max), product(rows_max)
    real(c_double), save :: residual(rows_max), right_side(rows_max)
    integer(c_int32_t), save :: order(rows_max)
    integer(c_int64_t), save :: state
    ! Of all rows: larger than what is beside it in a row, so that the matrix is positive definite.
    real(c_double), parameter :: diagonal = pairs + 0.5d0

contains

    ! The largest number of rows.
    function cg_rows_max() bind(c) result(most)
        integer(c_int32_t) :: most
        most = rows_max
    end function

    ! xorshift64; below `bound`.
    function random_below(bound) result(number)
        integer, intent(in) :: bound
        integer :: number
        state = ieor(state, ishft(state, 13))
        state = ieor(state, ishft(state, -7))
        state = ieor(state, ishft(state, 17))
        number = int(mod(ishft(state, -33), int(bound, c_int64_t)))
    end function

    ! Each row has an entry with one other of every pairing, and that one the same with it.
    subroutine cg_make(rows, seed) bind(c)
        integer(c_int32_t), value :: rows, seed
        integer :: pair, i, j, swap
        real(c_double) :: value
        state = seed * 2654435761_c_int64_t + 88172645463325252_c_int64_t
        order(1:rows) = [(i, i=1, rows)]
        do pair = 1, pairs
            do i = rows, 2, -1
                j = 1 + random_below(i)
                swap = order(i)
                order(i) = order(j)
                order(j) = swap
            end do
            do i = 1, rows - 1, 2
                value = -1d0 / (1 + random_below(4))
                columns(pair, order(i)) = order(i + 1)
                columns(pair, order(i + 1)) = order(i)
                values(pair, order(i)) = value
                values(pair, order(i + 1)) = value
            end do
        end do
        do i = 1, rows
            right_side(i) = 1 + random_below(100) / 100d0
        end do
    end subroutine

    subroutine multiply(rows, vector, result)
        integer, intent(in) :: rows
        real(c_double), intent(in) :: vector(rows)
        real(c_double), intent(out) :: result(rows)
        real(c_double) :: sum
        integer :: i, pair
        do i = 1, rows
            sum = diagonal * vector(i)
            do pair = 1, pairs
                sum = sum + values(pair, i) * vector(columns(pair, i))
            end do
            result(i) = sum
        end do
    end subroutine

    ! The square of the residual's norm after so many iterations.
    function cg_solve(rows, iterations) bind(c) result(rho)
        integer(c_int32_t), value :: rows, iterations
        real(c_double) :: rho, alpha, before
        integer :: n
        solution(1:rows) = 0
        residual(1:rows) = right_side(1:rows)
        direction(1:rows) = right_side(1:rows)
        rho = dot_product(residual(1:rows), residual(1:rows))
        do n = 1, iterations
            call multiply(rows, direction, product)
            alpha = rho / dot_product(direction(1:rows), product(1:rows))
            solution(1:rows) = solution(1:rows) + alpha * direction(1:rows)
            residual(1:rows) = residual(1:rows) - alpha * product(1:rows)
            before = rho
            rho = dot_product(residual(1:rows), residual(1:rows))
            direction(1:rows) = residual(1:rows) + rho / before * direction(1:rows)
        end do
    end function

    ! The largest error of an equation, of the solution as it is; `change` is added to one unknown.
    function cg_error(rows, change) bind(c) result(error)
        integer(c_int32_t), value :: rows
        real(c_double), value :: change
        real(c_double) :: error
        solution(rows / 2) = solution(rows / 2) + change
        call multiply(rows, solution, product)
        error = maxval(abs(right_side(1:rows) - product(1:rows)))
    end function
end module
